//! Integration tests: public API only.

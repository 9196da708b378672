//! Requests from outside to stop.

/// A signal that asked the process to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopSignal {
    Hangup,
    Interrupt,
    Terminate,
}

impl StopSignal {
    /// What a shell reports for a process ended by this signal: 128 and its number.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Hangup => 129,
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

/// Which signals count: an interactive session keeps the interrupt for itself, to end a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watch {
    All,
    AllButInterrupt,
}

/// The signals that have been asked to be told about.
#[cfg(unix)]
pub(crate) struct StopSignals {
    hangup: tokio::signal::unix::Signal,
    interrupt: Option<tokio::signal::unix::Signal>,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl StopSignals {
    /// From here on these signals are reported and no longer end the process by themselves.
    pub(crate) fn watch(watch: Watch) -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let interrupt = match watch {
            Watch::All => Some(signal(SignalKind::interrupt())?),
            Watch::AllButInterrupt => None,
        };
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> StopSignal {
        let interrupt = async {
            match &mut self.interrupt {
                Some(interrupt) => interrupt.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.hangup.recv() => StopSignal::Hangup,
            _ = interrupt => StopSignal::Interrupt,
            _ = self.terminate.recv() => StopSignal::Terminate,
        }
    }
}

/// Elsewhere there is only the interrupt.
#[cfg(not(unix))]
pub(crate) struct StopSignals(Watch);

#[cfg(not(unix))]
impl StopSignals {
    pub(crate) fn watch(watch: Watch) -> std::io::Result<Self> {
        Ok(Self(watch))
    }

    pub(crate) async fn next(&mut self) -> StopSignal {
        if self.0 == Watch::All && tokio::signal::ctrl_c().await.is_ok() {
            return StopSignal::Interrupt;
        }
        std::future::pending().await
    }
}

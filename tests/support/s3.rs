//! An S3 server on this machine, and a proxy in front of it that notes who asks.
//!
//! The server is a program of its own, installed by `make s3-server` where Python and a package
//! index can be reached. Where it is missing [`Server::start`] returns none, and says so.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The bucket that is there.
pub const BUCKET: &str = "rollouts-test";

/// A server that ends with its test.
pub struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `ROLLOUT_S3_PYTHON`, or where `make s3-server` puts it: beside the build.
fn python() -> Option<PathBuf> {
    if let Some(python) = std::env::var_os("ROLLOUT_S3_PYTHON") {
        return Some(PathBuf::from(python));
    }
    let this = std::env::current_exe().ok()?;
    let python = this.ancestors().nth(3)?.join("s3-server/bin/python");
    python.exists().then_some(python)
}

impl Server {
    /// Starts a server with an empty bucket; none where there is no server to start.
    pub async fn start() -> Option<Self> {
        let Some(python) = python() else {
            println!("skipped: no S3 server is installed (make s3-server)");
            return None;
        };
        let free = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = free.local_addr().expect("a port").port();
        drop(free);
        let child = Command::new(python)
            .args(["-m", "hypercorn", "ministack.app:app", "--bind"])
            .arg(format!("127.0.0.1:{port}"))
            // In this process: one of its own would outlive it.
            .args(["--workers", "0"])
            .env("GATEWAY_PORT", port.to_string())
            .env("SERVICES", "s3")
            .env("LOG_LEVEL", "ERROR")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        let server = Self { child, port };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !server.has_bucket().await {
            assert!(Instant::now() < deadline, "the S3 server does not answer");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Some(server)
    }

    /// Makes the bucket.
    async fn has_bucket(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)).await else {
            return false;
        };
        let request = format!(
            "PUT /{BUCKET} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.port
        );
        if stream.write_all(request.as_bytes()).await.is_err() {
            return false;
        }
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answer.starts_with(b"HTTP/1.1 200")
    }

    /// Where it answers.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A proxy in front of the server.
    pub async fn proxy(&self) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("a port").port();
        let keys: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let (seen, backend) = (keys.clone(), self.port);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass_on(client, backend, seen.clone()));
            }
        });
        Proxy { port, keys, task }
    }
}

/// Passes requests on and notes the access keys they are signed with.
pub struct Proxy {
    port: u16,
    keys: Arc<Mutex<BTreeSet<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The access keys of all requests so far.
    pub fn keys(&self) -> Vec<String> {
        self.keys.lock().iter().cloned().collect()
    }
}

async fn pass_on(client: TcpStream, backend: u16, seen: Arc<Mutex<BTreeSet<String>>>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", backend)).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = async move {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(read) = from_client.read(&mut bytes).await {
            if read == 0 || to_server.write_all(&bytes[..read]).await.is_err() {
                break;
            }
            // Headers come at the start of what is read, so a key is hardly ever cut in two.
            let text = String::from_utf8_lossy(&bytes[..read]);
            let signed = text.split("Credential=").skip(1);
            seen.lock()
                .extend(signed.filter_map(|rest| Some(rest.split_once('/')?.0.to_string())));
        }
        let _ = to_server.shutdown().await;
    };
    let answers = async move {
        let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
        let _ = to_client.shutdown().await;
    };
    tokio::join!(requests, answers);
}

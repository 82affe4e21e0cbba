//! `sconce serve`: its life from loading to the end, clients that misbehave, and what its log tells.
#![cfg(all(unix, feature = "serve"))]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::support::server::{Fault, Hub, Site};
use crate::support::serving::{Server, read_answer, request_bytes, serve};
use crate::support::{assert_fails, copy_folder, fixture, sconce, stderr};

const DENSE: &str = "bert-tiny";

/// Waits until a condition holds.
#[track_caller]
fn wait_until(mut is_reached: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if is_reached() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("it does not become true");
}

/// A connection whose request is admitted, and the part of its body that is still to be sent.
fn held(server: &Server) -> (TcpStream, Vec<u8>) {
    let request = request_bytes("/embed", r#"{"inputs":"the lamp"}"#);
    let (first, rest) = request.split_at(request.len() - 5);
    let mut stream = server.connect();
    stream.write_all(first).unwrap();
    server.await_metric("sconce_requests_in_flight", |requests| requests >= 1.0);
    (stream, rest.to_vec())
}

/// Waits until the server takes no new connections.
fn await_stop(server: &Server) {
    wait_until(|| TcpStream::connect(server.address).is_err());
}

/// A hub that holds back the weights of a model until its files are listed once more.
fn slow_hub() -> Hub {
    let files = fs::read_dir(fixture(DENSE)).unwrap().map(|entry| entry.unwrap().path());
    let mut files: BTreeMap<String, Vec<u8>> = (files.filter(|path| path.is_file()))
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap()))
        .collect();
    // Without the folders of modules.
    files.remove("modules.json");
    let faults = BTreeMap::from([("model.safetensors".to_owned(), Fault::Hold { at: 100 })]);
    let branches =
        BTreeMap::from([("main".to_owned(), "0123456789abcdef0123456789abcdef01234567".to_owned())]);
    Hub::start(Site { model: "org/tiny".into(), files, branches, token: None, moved: None, faults })
}

/// The server of a model of this hub, on a port of its own.
fn serve_from(hub: &Hub, cache: &std::path::Path) -> (Command, String) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let mut command = sconce();
    command.args(["serve", "-m", "org/tiny", "--threads", "2", "--port", &port]);
    command.env_remove("HF_HUB_OFFLINE").env("HF_HOME", cache).env("HF_ENDPOINT", &hub.url);
    (command, format!("127.0.0.1:{port}"))
}

/// The status and the body of a path at an address where there may be no server yet.
fn ask(address: &str, request: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let answer = read_answer(&mut stream);
    let retry = answer.header("retry-after").is_some();
    assert_eq!(retry, answer.status == 503);
    Some((answer.status, answer.body))
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
}

#[test]
fn a_server_is_live_and_not_ready_while_it_loads() {
    let (hub, cache) = (slow_hub(), tempfile::tempdir().unwrap());
    let (command, address) = serve_from(&hub, cache.path());
    thread::scope(|scope| {
        let server = scope.spawn(move || Server::spawn(command));
        wait_until(|| ask(&address, &get("/health/live")).is_some_and(|(status, _)| status == 200));
        let post = String::from_utf8(request_bytes("/embed", r#"{"inputs":"a"}"#)).unwrap();
        for (request, status, part) in [
            (get("/health/live"), 200, "{}"),
            (get("/health"), 503, "being loaded"),
            (get("/health/ready"), 503, "being loaded"),
            (post, 503, "being loaded"),
            (get("/metrics"), 200, "sconce_ready 0\n"),
            (get("/nowhere"), 404, "no route"),
        ] {
            let (found, body) = ask(&address, &request).unwrap();
            assert!(found == status && body.contains(part), "{request} {found} {body}");
        }
        ask(hub.url.strip_prefix("http://").unwrap(), &get("/api/models/org/tiny/revision/main"));
        let server = server.join().unwrap();
        assert_eq!(server.get("/health").status, 200);
        assert_eq!(server.metric("sconce_ready"), 1.0);
        server.stop();
    });
}

#[test]
fn a_server_that_loads_stops_at_once() {
    let (hub, cache) = (slow_hub(), tempfile::tempdir().unwrap());
    for (signal, code) in [("TERM", 0), ("INT", 130)] {
        let (mut command, address) = serve_from(&hub, cache.path());
        let mut child = command.spawn().unwrap();
        wait_until(|| TcpStream::connect(&address).is_ok());
        Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}");
    }
}

#[test]
fn admitted_requests_are_answered_before_the_end() {
    for signal in ["TERM", "INT"] {
        let server = Server::start(&[DENSE], &[]);
        let idle = server.connect();
        let (mut stream, rest) = held(&server);
        server.signal(signal);
        await_stop(&server);
        stream.write_all(&rest).unwrap();
        assert_eq!(read_answer(&mut stream).status, 200);
        let (status, log) = server.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        drop(idle);
    }
}

#[test]
fn a_stop_under_load_loses_no_answer() {
    let server = Server::start(&[DENSE], &["--log-format", "json"]);
    let texts: Vec<String> = (0..64).map(|i| format!("the lamp {i}")).collect();
    let body = json!({ "inputs": texts }).to_string();
    let url = format!("http://{}/embed", server.address);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..6)
            .map(|_| {
                scope.spawn(|| {
                    let agent: ureq::Agent =
                        ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().into();
                    let mut answered = 0;
                    loop {
                        let request = agent.post(&url).header("content-type", "application/json");
                        match request.send(&body) {
                            Ok(mut response) if response.status() == 200 => {
                                let body = response.body_mut().read_to_vec().expect("a whole body");
                                let vectors: Value = serde_json::from_slice(&body).expect("JSON");
                                assert_eq!(vectors.as_array().map(Vec::len), Some(64));
                                answered += 1;
                            }
                            Ok(response) => assert_eq!(response.status(), 503),
                            Err(_) => return answered,
                        }
                    }
                })
            })
            .collect();
        wait_until(|| server.metric("sconce_texts_total") > 1000.0);
        let log = server.stop();
        let answered: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
        let requests: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let message = requests[0]["message"].as_str().expect("the first line says where it listens");
        assert!(message.starts_with("listening on http://"), "{message}");
        let encoded =
            requests.iter().filter(|line| line["route"] == "/embed" && line["status"] == 200).count();
        assert_eq!(answered, encoded, "what was encoded has reached its client");
        assert!(encoded >= 1000 / 64);
    });
}

#[test]
fn requests_that_outlast_a_stop_are_refused() {
    let server = Server::start(&[DENSE], &["--shutdown-timeout", "1"]);
    let (mut stream, _) = held(&server);
    server.signal("TERM");
    let answer = read_answer(&mut stream);
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    assert!(answer.body.contains("the server stops"), "{}", answer.body);
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn a_second_signal_ends_at_once() {
    let server = Server::start(&[DENSE], &[]);
    let (_stream, _) = held(&server);
    server.signal("TERM");
    await_stop(&server);
    server.signal("TERM");
    assert_eq!(server.wait().0.code(), Some(130));
}

#[test]
fn addresses_that_cannot_be_used_are_an_error() {
    let server = Server::shared(&[DENSE], &[]);
    let port = server.address.port().to_string();
    let output = serve(&[DENSE], &["--port", &port]).output().unwrap();
    assert_fails(&output, 1, &[&format!("--port {port}"), "another process listens on 127.0.0.1"]);
    for host in ["no.such.host.invalid", "300.0.0.1", ""] {
        let output = serve(&[DENSE], &["--host", host]).output().unwrap();
        assert_fails(&output, 1, &[&format!("--host {host}"), "no such address"]);
    }
    assert_fails(
        &serve(&[DENSE], &["--host", "192.0.2.1"]).output().unwrap(),
        1,
        &["cannot listen on 192.0.2.1"],
    );
    assert_fails(&serve(&["nowhere"], &[]).output().unwrap(), 1, &["nowhere"]);
    let small = serve(&[DENSE], &["--max-memory", "10KB"]).output().unwrap();
    assert_fails(&small, 2, &["--max-memory 10", "the weights of the model need"]);
}

#[test]
fn a_unix_socket_is_a_file_of_its_own() {
    use std::os::unix::net::UnixStream;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let path_text = path.to_str().unwrap();
    let ask = |request: &[u8]| {
        let mut stream = UnixStream::connect(&path).ok()?;
        stream.write_all(request).ok()?;
        Some(read_answer(&mut stream))
    };
    let probe = || sconce().args(["serve", "--probe", "--unix-socket", path_text]).output().unwrap();
    assert_fails(&probe(), 1, &["no server answers at", path_text]);
    // The second server finds the file of a process that was killed.
    for signal in ["KILL", "TERM"] {
        let mut child = serve(&[DENSE], &["--quiet", "--unix-socket", path_text]).spawn().unwrap();
        wait_until(|| ask(get("/health").as_bytes()).is_some_and(|answer| answer.status == 200));
        let answer = ask(&request_bytes("/embed", r#"{"inputs":"the lamp"}"#)).unwrap();
        let expected = Server::shared(&[DENSE], &[]).post("/embed", &json!({ "inputs": "the lamp" }));
        assert_eq!(answer.body, expected.body);
        let output = serve(&[DENSE], &["--unix-socket", path_text]).output().unwrap();
        assert_fails(&output, 1, &[path_text, "another process listens on it"]);
        assert_eq!(probe().status.code(), Some(0));
        Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap();
        let code = child.wait().unwrap().code();
        assert_eq!((code, path.exists()), if signal == "TERM" { (Some(0), false) } else { (None, true) });
    }
    fs::write(&path, "text").unwrap();
    let output = serve(&[DENSE], &["--unix-socket", path_text]).output().unwrap();
    assert_fails(&output, 1, &[path_text, "there is a file of this name"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "text");
}

#[test]
fn a_server_stops_with_its_input_if_it_is_to() {
    let mut child = serve(&[DENSE], &["--quiet", "--stop-with-input"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("listening on"), "{line}");
    assert_eq!(child.try_wait().unwrap(), None);
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_quiet_server_prints_the_free_port_alone() {
    let server = Server::start(&[DENSE], &["--quiet"]);
    assert_eq!(server.get("/health").status, 200);
    let log = server.stop();
    assert_eq!((log.lines().count(), log.contains("listening on http://127.0.0.1:")), (1, true), "{log}");
}

#[test]
fn a_probe_tells_whether_a_server_is_ready() {
    let server = Server::start(&[DENSE], &[]);
    let port = server.address.port().to_string();
    let probe = || sconce().args(["serve", "--probe", "--port", &port]).output().unwrap();
    assert_eq!((probe().status.code(), stderr(&probe())), (Some(0), String::new()));
    server.stop();
    assert_fails(&probe(), 1, &["no server answers at 127.0.0.1", &port]);
}

#[test]
fn https_is_http_behind_a_certificate() {
    let folder = fixture("tls");
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (certificate, key) = (file("server.pem"), file("server.key"));
    let server = Server::start(&[DENSE], &["--tls-cert", &certificate, "--tls-key", &key]);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("ca.pem")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    // Clients that do not speak TLS, or stop in the middle of the handshake.
    let silent = server.connect();
    let mut plain = server.connect();
    plain.write_all(get("/health").as_bytes()).unwrap();
    let ask = |request: &[u8]| {
        let client = ClientConnection::new(config.clone(), "localhost".try_into().unwrap()).unwrap();
        let mut stream = StreamOwned::new(client, server.connect());
        stream.write_all(request).unwrap();
        read_answer(&mut stream)
    };
    let expected = Server::shared(&[DENSE], &[]).post("/embed", &json!({ "inputs": "the lamp" }));
    for _ in 0..3 {
        let answer = ask(&request_bytes("/embed", r#"{"inputs":"the lamp"}"#));
        assert_eq!((answer.status, answer.body), (200, expected.body.clone()));
    }
    drop((silent, plain));
    server.stop();
    for (certificate, key, part) in [
        (&key, &key, "has no certificate in PEM"),
        (&certificate, &certificate, "not a private key in PEM"),
        (&file("ca.pem"), &key, "does not fit --tls-key"),
        (&file("none.pem"), &key, "--tls-cert"),
    ] {
        let output = serve(&[DENSE], &["--tls-cert", certificate, "--tls-key", key]).output().unwrap();
        assert_fails(&output, 1, &[part]);
    }
    assert_eq!(serve(&[DENSE], &["--tls-cert", &certificate]).output().unwrap().status.code(), Some(2));
}

#[test]
fn connections_that_break_leave_nothing_behind() {
    let server = Server::start(&[DENSE], &[]);
    let request = request_bytes("/embed", r#"{"inputs":"the lamp"}"#);
    let head = request.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
    // From no byte at all to a whole request, whose client does not wait for the answer.
    for length in [0, 1, 20, head - 1, head, head + 3, request.len()] {
        for half in [false, true] {
            let mut stream = server.connect();
            stream.write_all(&request[..length]).unwrap();
            if half {
                stream.shutdown(Shutdown::Write).unwrap();
            }
        }
    }
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"GET\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
        b"POST /embed HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
    ] {
        let answer = server.raw(bytes);
        assert_eq!(answer.status / 100, 4, "{bytes:?}");
    }
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    let mut stream = server.connect();
    // The server may close the connection before it has read all of it.
    let _ = stream.write_all(long.as_bytes());
    // Byte by byte, beside other requests.
    let mut slow = server.connect();
    for byte in &request {
        slow.write_all(std::slice::from_ref(byte)).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(read_answer(&mut slow).status, 200);
    server.await_metric("sconce_requests_in_flight", |requests| requests == 0.0);
    server.await_metric("sconce_bytes_in_flight", |bytes| bytes == 0.0);
    drop((stream, slow));
    // That of the request for the metrics itself.
    server.await_metric("sconce_connections", |connections| connections <= 2.0);
    assert_eq!(server.post("/embed", &json!({ "inputs": "the lamp" })).status, 200);
    server.stop();
}

#[test]
fn a_request_has_its_time_only() {
    let server = Server::start(&[DENSE], &["--request-timeout", "1"]);
    let (mut stream, _) = held(&server);
    let answer = read_answer(&mut stream);
    assert_eq!(answer.status, 504);
    assert!(answer.body.contains("longer than 1 seconds"), "{}", answer.body);
    server.await_metric("sconce_requests_in_flight", |requests| requests == 0.0);
}

#[test]
fn texts_of_clients_that_leave_are_not_encoded() {
    const TEXTS: usize = 40_000;
    let server = Server::start(&[DENSE], &["--max-client-batch-size", "100000"]);
    let before = server.metric("sconce_batch_texts_total");
    let texts: Vec<String> = (0..TEXTS).map(|i| format!("the lamp of {i} burning candle")).collect();
    let request = request_bytes("/embed", &json!({ "inputs": texts }).to_string());
    let mut stream = server.connect();
    stream.write_all(&request).unwrap();
    server.await_metric("sconce_batch_texts_total", |texts| texts > before);
    drop(stream);
    server.await_metric("sconce_requests_in_flight", |requests| requests == 0.0);
    server.await_metric("sconce_queue_texts", |texts| texts == 0.0);
    // A text was encoded, or left out, and counted once.
    wait_until(|| {
        let encoded = server.metric("sconce_batch_texts_total") - before;
        server.metric("sconce_cancelled_texts_total") + encoded == TEXTS as f64
    });
    assert!(server.metric("sconce_cancelled_texts_total") > 0.0);
    assert_eq!(server.metric("sconce_bytes_in_flight"), 0.0);
}

#[test]
fn many_texts_are_refused_or_answered_as_a_whole() {
    const TEXTS: usize = 100_000;
    let body = json!({ "inputs": vec![""; TEXTS] });
    let answer = Server::shared(&[DENSE], &[]).post("/embed", &body);
    assert_eq!(answer.status, 422);
    assert!(
        answer.body.contains("more than 2048 elements") && answer.body.contains("--max-client-batch-size")
    );
    let server = Server::shared(&[DENSE], &["--max-client-batch-size", "100000"]);
    let mut body = body;
    body["dimensions"] = json!(2);
    let answer = server.post("/embed", &body).ok();
    let vectors = answer.as_array().unwrap();
    assert_eq!(vectors.len(), TEXTS);
    assert!(vectors.iter().all(|vector| *vector == vectors[0]));
}

#[test]
fn an_answer_that_is_not_read_counts_as_bytes_in_flight_and_as_no_request() {
    const TEXTS: usize = 40_000;
    let server =
        Server::start(&[DENSE], &["--max-client-batch-size", "100000", "--max-concurrent-requests", "1"]);
    let mut stream = server.connect();
    stream.write_all(&request_bytes("/embed", &json!({ "inputs": vec![""; TEXTS] }).to_string())).unwrap();
    server.await_metric("sconce_texts_total", |texts| texts == TEXTS as f64);
    assert_eq!(server.metric("sconce_requests_in_flight"), 0.0);
    assert!(server.metric("sconce_bytes_in_flight") > 1e7);
    assert_eq!(server.post("/embed", &json!({ "inputs": "the lamp" })).status, 200);
    drop(stream);
    server.await_metric("sconce_bytes_in_flight", |bytes| bytes == 0.0);
}

#[test]
fn idle_connections_do_not_stop_others() {
    let server = Server::start(&[DENSE], &[]);
    let idle: Vec<TcpStream> = (0..500).map(|_| server.connect()).collect();
    server.await_metric("sconce_connections", |connections| connections > 500.0);
    assert_eq!(server.post("/embed", &json!({ "inputs": "the lamp" })).status, 200);
    drop(idle);
    server.await_metric("sconce_connections", |connections| connections < 5.0);
    server.stop();
}

#[test]
fn a_server_without_free_file_descriptors_recovers() {
    let inner = serve(&[DENSE], &[]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 32; exec \"$@\"", "sh"]).arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let server = Server::spawn(command);
    let idle: Vec<TcpStream> = (0..60).map(|_| server.connect()).collect();
    drop(idle);
    assert_eq!(server.post("/embed", &json!({ "inputs": "the lamp" })).status, 200);
    server.stop();
}

/// A copy of a model in which the embedding of one token is NaN.
fn with_nan(token: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture(DENSE), folder.path());
    let tokenizer: Value =
        serde_json::from_slice(&fs::read(folder.path().join("tokenizer.json")).unwrap()).unwrap();
    let id = tokenizer["model"]["vocab"][token].as_u64().unwrap() as usize;
    let path = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let embeddings = tensors.tensor("embeddings.word_embeddings.weight").unwrap();
    let row = 4 * embeddings.shape()[1];
    let start = embeddings.data().as_ptr() as usize - bytes.as_ptr() as usize + id * row;
    bytes[start..start + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(path, bytes).unwrap();
    folder
}

#[test]
fn vectors_that_are_not_finite_are_an_error_of_their_request() {
    let model = with_nan("wick");
    let server = Server::start(&[model.path().to_str().unwrap()], &[]);
    let expected = Server::shared(&[DENSE], &[]).post("/embed", &json!({ "inputs": ["the lamp", "a"] })).ok();
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            for _ in 0..50 {
                let found = server.post("/embed", &json!({ "inputs": ["the lamp", "a"] })).ok();
                assert_eq!(found, expected);
            }
        });
        for (path, body, name) in [
            ("/embed", json!({ "inputs": ["the lamp", "a wick", "a"] }), "inputs[1]"),
            ("/embed", json!({ "inputs": "wick" }), "inputs"),
            ("/v1/embeddings", json!({ "input": ["wick"], "encoding_format": "base64" }), "input[0]"),
            ("/api/embed", json!({ "input": ["a", "b", "wick"] }), "input[2]"),
            ("/rerank", json!({ "query": "a", "texts": ["a", "wick"] }), "texts[1]"),
            ("/rerank", json!({ "query": "wick", "texts": ["a"] }), "query"),
        ] {
            let answer = server.post(path, &body);
            assert_eq!(answer.status, 500, "{path} {}", answer.body);
            let body = answer.json();
            let message = body["error"].as_str().or(body["error"]["message"].as_str()).unwrap();
            assert!(message.starts_with(&format!("{name} gives values that are not finite")), "{message}");
        }
        other.join().unwrap();
    });
    server.stop();
}

#[test]
fn logs_metrics_and_errors_have_no_text_vector_or_key() {
    const MARKER: &str = "zzmarkerzz";
    for options in [&["-v"][..], &["-v", "--log-format", "json"], &["--log-format", "json"], &[]] {
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys");
        fs::write(&keys, format!("key-{MARKER}\n")).unwrap();
        let server =
            Server::start(&[DENSE], &[&["--api-key-file", keys.to_str().unwrap()], options].concat());
        let key = format!("Bearer key-{MARKER}");
        let post = |path: &str, body: &str, key: &str| {
            let headers =
                [("content-type", "application/json"), ("authorization", key), ("x-request-id", "id-7")];
            server.post_with(path, body, &headers)
        };
        let long = format!("{MARKER} ").repeat(40);
        let vector = post("/embed", &json!({ "inputs": [MARKER] }).to_string(), &key).ok();
        let number = vector[0][0].to_string();
        let mut told = String::new();
        for (path, body) in [
            ("/embed", json!({ "inputs": [long] }).to_string()),
            ("/embed", json!({ "inputs": [long], "truncate": false }).to_string()),
            ("/embed", json!({ "inputs": [MARKER, 7] }).to_string()),
            ("/embed", json!({ "inputs": [MARKER, [MARKER]] }).to_string()),
            ("/embed", json!({ "inputs": { "a": MARKER } }).to_string()),
            ("/embed", format!("{{\"inputs\": \"{MARKER}\", }}")),
            ("/embed", format!("{{\"inputs\": \"{MARKER}")),
            ("/embed", format!("{{'inputs': '{MARKER}'}}")),
            ("/embed", format!("{{\"inputs\": \"{MARKER}\\ud83d\"}}")),
            ("/embed", format!("\"{MARKER}\"")),
            ("/v1/embeddings", json!({ "input": [MARKER], "dimensions": 5000 }).to_string()),
            ("/v1/rerank", json!({ "query": MARKER, "documents": [MARKER, null] }).to_string()),
            ("/rerank", json!({ "query": [MARKER], "texts": [MARKER] }).to_string()),
            ("/predict", json!({ "inputs": MARKER }).to_string()),
        ] {
            let answer = post(path, &body, &key);
            if answer.status != 200 {
                told += &answer.body;
            }
        }
        let refused = post("/embed", "{}", &format!("Bearer wrong-{MARKER}"));
        assert_eq!(refused.status, 401);
        let metrics = server.get_with("/metrics", &[("authorization", &key)]).body;
        assert!(metrics.contains("sconce_texts_total"), "{metrics}");
        told += &refused.body;
        told += &metrics;
        let log = server.stop();
        let requests = log.lines().filter(|line| line.contains("id-7")).count();
        assert_eq!(requests, if options.is_empty() { 0 } else { 16 }, "{log}");
        if options.contains(&"json") {
            for line in log.lines().filter(|line| line.contains("id-7")) {
                let line: Value = serde_json::from_str(line).unwrap();
                assert!(
                    line["status"].is_u64() && line["route"].is_string() && line["seconds"].is_f64(),
                    "{line}"
                );
            }
        }
        told += &log;
        for secret in [MARKER, &number] {
            let line = told.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "{secret}");
        }
    }
    let output = serve(&[DENSE], &["--api-key-file", "/dev/null"]).output().unwrap();
    assert!(!output.status.success(), "{}", stderr(&output));
}

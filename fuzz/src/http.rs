//! What must hold for whatever is sent to the HTTP interface: the check of the fuzz target `http`,
//! which `crates/server/src/http/replay.rs` also runs over the seeds.

use std::cell::OnceCell;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::Uri;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::runtime::{Builder, Runtime};

use super::guard::{Hosts, guard};
use super::{Name, Query, body};

/// Bytes of the head of a request and headers in it, as the server has them.
const HEAD: usize = 16 << 10;
const HEADERS: usize = 64;
/// Bytes of an answer to nothing, at most.
const ANSWER: usize = 1024;
/// How often what was sent may be in an answer, which names what is wrong with it and where: a byte
/// becomes up to six in JSON.
const REPEATED: usize = 2 * 6;

/// Bytes that may be on their way in each direction, at least.
const ROOM: usize = 64 << 10;

/// Takes the input as what comes on a connection, and answers what can be answered without a broker.
pub fn http(data: &[u8]) {
    thread_local! {
        static RUNTIME: OnceCell<(Runtime, Router)> = const { OnceCell::new() };
    }
    RUNTIME.with(|it| {
        let (runtime, router) = it.get_or_init(|| {
            let runtime = Builder::new_current_thread().enable_time().build();
            (runtime.expect("a runtime"), router())
        });
        let answered = runtime.block_on(answer(router, data));
        look_at(data, &answered);
    });
}

/// What reads requests, and nothing behind it.
fn router() -> Router {
    let hosts = Arc::new(Hosts::new(&["broker.example".into()]));
    Router::new()
        .route("/api/v1/flows", get(page).post(flow))
        .route("/api/v1/what-if", post(flow))
        .route("/api/v1/flows/{*id}", get(named).delete(named))
        .route("/api/v1/clients/{id}", get(named).delete(named))
        .route("/api/v1/mesh/neighbours", post(neighbour))
        .layer(from_fn_with_state(hosts, guard))
}

async fn answer(router: &Router, data: &[u8]) -> Vec<u8> {
    // Room for every answer: with debug assertions hyper wants one to have left before it answers
    // what cannot be read.
    let (mut client, server) = duplex(ROOM + REPEATED * data.len());
    let routes = TowerToHyperService::new(router.clone());
    let mut builder = http1::Builder::new();
    builder.max_headers(HEADERS).max_buf_size(HEAD);
    let connection = builder.serve_connection(TokioIo::new(server), routes);
    let mut answers = Vec::new();
    let talk = async {
        client.write_all(data).await.ok();
        client.shutdown().await.ok();
        client.read_to_end(&mut answers).await.ok();
    };
    let _ = tokio::join!(connection, talk);
    answers
}

/// Every answer is one, and says that it is not a page; all are short.
fn look_at(data: &[u8], answers: &[u8]) {
    let text = String::from_utf8_lossy(answers);
    assert!(answers.is_empty() || text.starts_with("HTTP/1."), "{text}");
    assert!(!text.contains("\r\naccess-control-"), "{text}");
    let requests = 1 + data.windows(8).filter(|it| it == b" HTTP/1.").count();
    let most = requests * ANSWER + REPEATED * data.len();
    assert!(answers.len() <= most, "{} > {most}", answers.len());
}

/// A list: the parameters that lists have.
async fn page(uri: Uri) -> Response {
    let mut query = Query::new(&uri);
    let read = (|| {
        let limit = query.limit()?;
        assert!((1..=1000).contains(&limit));
        if let Some(filter) = query.filter()? {
            assert!(punctual_codec::topic::validate_filter(&filter).is_ok());
        }
        query.flag("expected")?;
        query.take("after")?;
        query.finish()
    })();
    read.into_response()
}

/// Something that has a name.
async fn named(Name(name): Name, uri: Uri) -> Response {
    match Query::new(&uri).finish() {
        Ok(()) => format!("{}", name.len()).into_response(),
        Err(error) => error.into_response(),
    }
}

/// A flow that is asked for.
async fn flow(body: Bytes) -> Response {
    let read = body::Wanted::read(&body).and_then(|wanted| wanted.requirements());
    match read {
        Ok(requirements) => {
            assert!(requirements.is_real_time());
            requirements.to_string().into_response()
        }
        Err(error) => error.into_response(),
    }
}

/// A neighbour that is asked for: what is taken is written as it was read.
async fn neighbour(body: Bytes) -> Response {
    match body::neighbour(&body) {
        Ok(neighbour) => {
            let text = neighbour.to_string();
            assert_eq!(text.parse(), Ok(neighbour));
            text.into_response()
        }
        Err(error) => error.into_response(),
    }
}

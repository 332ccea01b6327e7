//! What every request has to pass, and every answer carries.
//!
//! Who somebody is, [`authorization`](super::authorization) asks. This is against web pages that a browser on
//! an administrator's machine may have open, which sends credentials of its own accord: no CORS
//! header is ever sent, so they cannot read answers nor send DELETE, and a name under which the
//! interface is not known is refused, so that they cannot pretend to be its own pages either (DNS
//! rebinding). What a POST has to say is JSON and called so, which a page of another site cannot send
//! without being allowed to (CORS preflight).

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use axum::http::header::{HeaderValue, X_CONTENT_TYPE_OPTIONS};
use axum::http::{Method, StatusCode, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::timeout;

use super::error::ApiError;

/// How long an answer may take to be made.
const ANSWER: Duration = Duration::from_secs(10);
/// Largest body of a request.
const BODY: usize = 64 << 10;

/// The names under which the interface may be asked, besides addresses and
/// `localhost`.
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    pub(super) fn new(names: &[String]) -> Self {
        Self(names.to_vec())
    }

    /// Whether `authority`, a host with or without port, is known.
    fn allow(&self, authority: &str) -> bool {
        if let Some(rest) = authority.strip_prefix('[') {
            return rest.split_once(']').is_some_and(|(address, port)| {
                address.parse::<Ipv6Addr>().is_ok() && (port.is_empty() || is_port(port))
            });
        }
        let (host, port) = match authority.find(':') {
            Some(at) => authority.split_at(at),
            None => (authority, ""),
        };
        let name = host.strip_suffix('.').unwrap_or(host);
        let known = |other: &String| other.eq_ignore_ascii_case(name);
        (port.is_empty() || is_port(port))
            && (host.parse::<IpAddr>().is_ok()
                || name.eq_ignore_ascii_case("localhost")
                || self.0.iter().any(known))
    }
}

/// Whether it is a colon and a number.
fn is_port(text: &str) -> bool {
    text.strip_prefix(':')
        .is_some_and(|port| port.parse::<u16>().is_ok())
}

pub(super) async fn guard(
    State(hosts): State<Arc<Hosts>>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = match admit(&hosts, &request) {
        Ok(()) => {
            let answer = timeout(ANSWER, next.run(request)).await;
            answer.unwrap_or_else(|_| {
                ApiError::unavailable(
                    format!("there is no answer after {ANSWER:?}"),
                    "ask for less at a time (limit), or when the broker is less busy",
                )
                .into_response()
            })
        }
        Err(error) => error.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn admit(hosts: &Hosts, request: &Request) -> Result<(), ApiError> {
    let mut named = 0;
    let in_headers = request.headers().get_all(HOST).iter();
    let in_headers = in_headers.map(|host| String::from_utf8_lossy(host.as_bytes()));
    let in_target = request.uri().authority().map(|host| host.as_str().into());
    for host in in_headers {
        named += 1;
        if !hosts.allow(&host) {
            return Err(misdirected(&host));
        }
    }
    if let Some(host) = in_target.filter(|host: &std::borrow::Cow<'_, str>| !hosts.allow(host)) {
        return Err(misdirected(&host));
    }
    if named > 1 || (named == 0 && request.version() > Version::HTTP_10) {
        return Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            format!("the request has {named} Host headers"),
            "send one",
        ));
    }
    let length = request.headers().get(CONTENT_LENGTH);
    if request.method() == Method::POST {
        return admit_body(request);
    }
    if request.headers().contains_key(TRANSFER_ENCODING)
        || length.is_some_and(|length| length != "0")
    {
        return Err(ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the request has a body",
            "send none: what there is to say is in the path and the query",
        ));
    }
    Ok(())
}

/// A body is small, of a length that is known, and JSON.
fn admit_body(request: &Request) -> Result<(), ApiError> {
    let header = |name| request.headers().get(name).and_then(|v| v.to_str().ok());
    let chunked = request.headers().contains_key(TRANSFER_ENCODING);
    let length = header(CONTENT_LENGTH).unwrap_or("0").parse::<usize>();
    if length == Ok(0) && !chunked {
        return Ok(());
    }
    if chunked || length.is_ok_and(|length| length > BODY) {
        return Err(ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is not of a stated length of at most {BODY} bytes"),
            "send a smaller one with Content-Length",
        ));
    }
    let kind = header(CONTENT_TYPE).unwrap_or_default();
    if kind.split(';').next().map(str::trim) != Some("application/json") {
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body is not called JSON",
            "send it with Content-Type: application/json",
        )
        .about("Content-Type", kind));
    }
    Ok(())
}

fn misdirected(host: &str) -> ApiError {
    ApiError::new(
        StatusCode::MISDIRECTED_REQUEST,
        "this is not a name of the HTTP interface",
        "use its IP address or localhost, or add the name to server.http_names",
    )
    .about("Host", host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_configured_names_are_known() {
        let hosts = Hosts::new(&["Broker.example".into()]);
        for good in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "10.1.2.3:80",
            "[::1]",
            "[::1]:8080",
            "localhost:8080",
            "LOCALHOST",
            "localhost.",
            "broker.example:1",
            "BROKER.EXAMPLE.",
        ] {
            assert!(hosts.allow(good), "{good}");
        }
        for bad in [
            "",
            ":8080",
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "localhost@evil.example",
            "127.0.0.1:8080@evil.example",
            "[::1].evil.example",
            "[::1",
            "[evil.example]",
            "::1",
            "broker.example:x",
            "broker.example:",
            "not-broker.example",
        ] {
            assert!(!hosts.allow(bad), "{bad}");
        }
    }
}

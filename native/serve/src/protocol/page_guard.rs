//! Page guard: tells whether a request may come from a page of another site, in a browser of this machine. Knows no
//! path.

use std::net::IpAddr;

use axum::http::HeaderMap;
use axum::http::header::{HOST, ORIGIN};

const HELP: &str = "help: use http://127.0.0.1:PORT without a page, or start the node with --token-file";

/// Returns why a request to a loopback address without a token is refused, if it is.
///
/// A name of another site may resolve to this machine; its pages then send that name as the host. Other pages name
/// their site as the origin.
pub fn foreign_page(headers: &HeaderMap) -> Option<String> {
    let text = |value: &axum::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let hosts: Vec<String> = headers.get_all(HOST).iter().map(text).collect();
    if let Some(host) = hosts.iter().find(|host| !names_loopback(host)) {
        return Some(format!(
            "the request is for host {host:?}, but this node serves only its own machine; {HELP}"
        ));
    }
    let origins = headers.get_all(ORIGIN).iter().map(text);
    let is_own = |origin: &str| {
        origin.split_once("://").is_some_and(|(_, from)| hosts.iter().any(|host| host == from))
    };
    let origin = origins.into_iter().find(|origin| !is_own(origin))?;
    Some(format!("the request comes from a page of {origin:?}; {HELP}"))
}

fn names_loopback(host: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    let bare = name.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(name);
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused(headers: &[(&'static str, &str)]) -> bool {
        let pairs = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        foreign_page(&pairs.collect()).is_some()
    }

    #[test]
    fn hosts_of_this_machine_are_known_and_no_others() {
        for host in ["127.0.0.1", "127.0.0.1:8000", "127.8.9.1:1", "LocalHost:8000", "[::1]", "[::1]:8000"] {
            assert!(!is_refused(&[("host", host)]), "{host}");
        }
        assert!(!is_refused(&[]));
        for host in
            ["", "a.example", "127.0.0.1.a.example:80", "localhost.a.example", "10.0.0.1:80", "[::2]:1"]
        {
            assert!(is_refused(&[("host", host)]), "{host}");
        }
        assert!(is_refused(&[("host", "localhost"), ("host", "a.example")]));
    }

    #[test]
    fn a_page_is_known_by_its_origin() {
        let host = ("host", "127.0.0.1:8000");
        assert!(!is_refused(&[host, ("origin", "http://127.0.0.1:8000")]));
        for origin in ["http://a.example", "http://127.0.0.1:9000", "http://localhost:8000", "null", ""] {
            assert!(is_refused(&[host, ("origin", origin)]), "{origin}");
        }
        assert!(is_refused(&[("origin", "http://127.0.0.1:8000")]));
    }
}

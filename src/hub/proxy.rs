//! The proxy of a request, by the variables that curl and Python read: `http_proxy`, `https_proxy`,
//! `all_proxy` and `no_proxy`, in lower or upper case.

use std::env;
use std::net::IpAddr;

use ureq::ProxyProtocol;

use super::url::{Origin, default_port};

/// A proxy, and the variable that names it.
#[derive(Debug)]
pub(super) struct Proxy {
    pub proxy: ureq::Proxy,
    pub variable: String,
}

impl Proxy {
    /// The proxy for requests of an origin; `None` if there is none, or `no_proxy` excludes the host.
    ///
    /// # Errors
    /// If the variable does not hold the URL of a proxy: a sentence.
    pub(super) fn of(origin: &Origin) -> Result<Option<Self>, String> {
        let (scheme, host, port) = origin;
        let Some((variable, url)) = setting(scheme, |name| env::var(name).ok()) else { return Ok(None) };
        let no_proxy = either_case("no", |name| env::var(name).ok()).map(|(_, hosts)| hosts);
        let given_port = Some(*port).filter(|port| default_port(scheme) != Some(*port));
        if no_proxy.is_some_and(|hosts| is_excluded(&hosts, host, given_port)) {
            return Ok(None);
        }
        // The value may have a password.
        let proxy = ureq::Proxy::new(url.trim()).map_err(|_| {
            format!("{variable} is not the URL of a proxy; set it to a URL such as http://proxy.example:3128")
        })?;
        Ok(Some(Proxy { proxy, variable }))
    }

    /// Whether the connection to the proxy itself is encrypted.
    pub(super) fn is_tls(&self) -> bool {
        self.proxy.protocol() == ProxyProtocol::Https
    }
}

/// The variable that sets the proxy of a scheme, and its value.
fn setting(scheme: &str, value_of: impl Fn(&str) -> Option<String> + Copy) -> Option<(String, String)> {
    either_case(scheme, value_of).or_else(|| either_case("all", value_of))
}

/// The variable `KIND_proxy` in lower case, even if it is empty, which disables the one in upper case; else
/// that one. A CGI server sets `HTTP_PROXY` to a header of the client, so that it is not read there.
fn either_case(kind: &str, value_of: impl Fn(&str) -> Option<String>) -> Option<(String, String)> {
    let lower = format!("{kind}_proxy");
    let upper = lower.to_uppercase();
    let is_header = || kind == "http" && value_of("REQUEST_METHOD").is_some();
    let upper_value = || value_of(&upper).filter(|_| !is_header());
    let found = value_of(&lower).map(|value| (lower.clone(), value));
    found.or_else(|| Some((upper.clone(), upper_value()?))).filter(|(_, value)| !value.trim().is_empty())
}

/// Whether `no_proxy`, a list with commas or blanks, has an entry for a host. `port` is that of the URL,
/// unless it is the scheme's own.
fn is_excluded(no_proxy: &str, host: &str, port: Option<u16>) -> bool {
    let host = host.trim_matches(['[', ']']).trim_end_matches('.').to_lowercase();
    let entries = no_proxy.split(|c: char| c == ',' || c.is_whitespace()).filter(|entry| !entry.is_empty());
    entries.map(str::to_lowercase).any(|entry| covers(&entry, &host, port))
}

/// Whether an entry is for a host: `*`, a domain with all its hosts, an address or a network of addresses, a
/// pattern such as `*.example.org`; with a port, for that port only.
fn covers(entry: &str, host: &str, port: Option<u16>) -> bool {
    let address = host.parse::<IpAddr>().ok();
    if let Some((network, bits)) = entry.split_once('/') {
        return is_in_network(network, bits, address).unwrap_or(false);
    }
    let (name, wanted_port) = split_port(entry);
    if wanted_port.is_some() && wanted_port != port {
        return false;
    }
    if name.contains('*') {
        return matches(name, host);
    }
    match (name.parse::<IpAddr>(), address) {
        (Ok(name), Some(address)) => name == address,
        (Ok(_), None) | (Err(_), Some(_)) => false,
        (Err(_), None) => {
            let domain = name.trim_matches('.');
            let prefix = host.strip_suffix(domain);
            !domain.is_empty() && prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'))
        }
    }
}

/// Whether a pattern, in which `*` stands for any characters, is that of a host.
fn matches(pattern: &str, host: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == host };
    let tail_matches = |host: &str| {
        let ends = host.char_indices().map(|(at, _)| at).chain([host.len()]);
        ends.map(|at| &host[at..]).any(|tail| matches(rest, tail))
    };
    host.strip_prefix(start).is_some_and(tail_matches)
}

/// Whether an address is in a network in CIDR notation; `None` if the notation is malformed or the host is a
/// name.
fn is_in_network(network: &str, bits: &str, address: Option<IpAddr>) -> Option<bool> {
    let network: IpAddr = network.trim_matches(['[', ']']).parse().ok()?;
    let bits: u32 = bits.parse().ok()?;
    let prefix = |address: u128, width: u32| address.checked_shr(width.checked_sub(bits)?).or(Some(0));
    match (network, address?) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            Some(prefix(u32::from(a).into(), 32)? == prefix(u32::from(b).into(), 32)?)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => Some(prefix(a.into(), 128)? == prefix(b.into(), 128)?),
        _ => None,
    }
}

/// A host and its port: `example.org:80`, `[::1]:80`. An IPv6 address without brackets has none.
fn split_port(entry: &str) -> (&str, Option<u16>) {
    let parts = entry.rsplit_once(':').filter(|(host, _)| host.ends_with(']') || !host.contains(':'));
    let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = parts.map_or((entry, None), |(host, port)| (host, Some(port)));
    (host.trim_matches(['[', ']']), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers of curl 7.88, of `urllib.request.proxy_bypass_environment` (Python 3.11), of requests 2.34
    /// and of the client of `huggingface_hub` 2.4 (httpx2), in this order: 1 for "without a proxy". Where
    /// they differ, the last column has what is done here: what an entry visibly means.
    #[test]
    fn no_proxy_is_read_as_by_curl_and_python() {
        for (no_proxy, host, port, tools, expected) in [
            ("example.org", "example.org", None, "1111", true),
            ("example.org", "hub.example.org", None, "1111", true),
            ("example.org", "a.hub.example.org", None, "1111", true),
            ("example.org", "notexample.org", None, "0000", false),
            ("org", "example.org", None, "1111", true),
            (".example.org", "hub.example.org", None, "1111", true),
            (".example.org", "example.org", None, "1110", true),
            ("*.example.org", "hub.example.org", None, "0001", true),
            ("*.example.org", "example.org", None, "0000", false),
            ("EXAMPLE.org", "hub.Example.ORG", None, "1111", true),
            ("other.org, example.org", "hub.example.org", None, "1111", true),
            ("other.org ,\texample.org", "hub.example.org", None, "1111", true),
            ("other.org example.org", "example.org", None, "1000", true),
            (",,example.org,", "example.org", None, "1111", true),
            ("example.org.", "example.org", None, "1000", true),
            ("example.org", "example.org.", None, "1000", true),
            ("*", "example.org", None, "1111", true),
            ("other.org,*", "example.org", None, "0001", true),
            ("", "example.org", None, "0000", false),
            ("example.org:8080", "example.org", Some(8080), "0111", true),
            ("example.org:8080", "hub.example.org", Some(8080), "0111", true),
            ("example.org:8080", "example.org", Some(9090), "0000", false),
            ("example.org:8080", "example.org", None, "0000", false),
            ("example.org:80", "example.org", None, "0000", false),
            ("localhost", "localhost", Some(9), "1111", true),
            ("localhost", "127.0.0.1", Some(9), "0000", false),
            ("127.0.0.1", "127.0.0.1", Some(9), "1111", true),
            ("127.0.0.1", "127.0.0.2", Some(9), "0000", false),
            ("127.0.0.1:9", "127.0.0.1", Some(9), "0101", true),
            ("0.0.1", "127.0.0.1", Some(9), "0111", false),
            ("127.0.0.0/8", "127.9.9.9", Some(9), "1011", true),
            ("10.0.0.0/8", "127.9.9.9", Some(9), "0000", false),
            ("127.1.2.3/16", "127.1.9.9", Some(9), "1011", true),
            ("127.1.2.3/16", "127.2.9.9", Some(9), "0000", false),
            ("127.0.0.1/32", "127.0.0.1", Some(9), "1011", true),
            ("127.0.0.0/33", "127.0.0.1", Some(9), "0000", false),
            ("127.0.0.0/8", "example.org", None, "0000", false),
            ("::1", "[::1]", Some(9), "1011", true),
            ("[::1]", "[::1]", Some(9), "0101", true),
            ("[::1]:9", "[::1]", Some(9), "0101", true),
            ("[::1]:8", "[::1]", Some(9), "0000", false),
            ("fe80::/10", "[fe80::1]", Some(9), "0001", true),
            ("fe80::/10", "[fec0::1]", Some(9), "0000", false),
            ("::/0", "[::1]", Some(9), "0001", true),
            ("::/0", "127.0.0.1", Some(9), "0000", false),
        ] {
            assert_eq!(is_excluded(no_proxy, host, port), expected, "{no_proxy:?} for {host}, port {port:?}");
            let is_said = tools.contains(if expected { '1' } else { '0' });
            assert!(is_said, "no tool reads {no_proxy:?} for {host} like this");
        }
    }

    /// As `urllib.request.getproxies_environment` and httpx: lower case before upper case, the scheme's own
    /// before `all_proxy`.
    #[test]
    fn a_scheme_has_its_own_proxy() {
        for (variables, scheme, expected) in [
            (&[("https_proxy", "a"), ("HTTPS_PROXY", "b")][..], "https", Some(("https_proxy", "a"))),
            (&[("HTTPS_PROXY", "b")], "https", Some(("HTTPS_PROXY", "b"))),
            (&[("https_proxy", ""), ("HTTPS_PROXY", "b")], "https", None),
            (&[("HTTP_PROXY", "b")], "https", None),
            (&[("HTTPS_PROXY", "b")], "http", None),
            (&[("HTTP_PROXY", "b")], "http", Some(("HTTP_PROXY", "b"))),
            (&[("HTTP_PROXY", "b"), ("REQUEST_METHOD", "GET")], "http", None),
            (&[("http_proxy", "a"), ("REQUEST_METHOD", "GET")], "http", Some(("http_proxy", "a"))),
            (&[("ALL_PROXY", "c")], "http", Some(("ALL_PROXY", "c"))),
            (&[("all_proxy", "c"), ("https_proxy", "a")], "https", Some(("https_proxy", "a"))),
            (&[("ALL_PROXY", "c"), ("https_proxy", "")], "https", Some(("ALL_PROXY", "c"))),
            (&[], "https", None),
        ] {
            let value_of = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            let expected = expected.map(|(name, value): (&str, &str)| (name.to_owned(), value.to_owned()));
            assert_eq!(setting(scheme, value_of), expected, "{variables:?} for {scheme}");
        }
    }
}

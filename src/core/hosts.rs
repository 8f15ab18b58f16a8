//! Names of hosts: which one a request or a handshake is for, and what belongs to it.
//!
//! A pattern is a name such as `api.example.com`, or `*.example.com` for every name with exactly one label more, as in certificates (RFC 9525,
//! section 6.3). A whole name comes before a pattern with `*`, and both before what is for every host.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use super::routes::{RoutePrefix, Routes};

/// The longest name of a host (RFC 1035, section 2.3.4).
const NAME_BYTES: usize = 253;

/// A host's name or address, or `*.` and a name; in lower case, without a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPattern(String);

/// A text that is no host. Its message says what was expected and found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostError {
    found: String,
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.found.escape_debug();
        write!(
            f,
            "expected a host without scheme, port and path, such as `api.example.com` or `*.example.com`, found `{found}`"
        )
    }
}

impl std::error::Error for HostError {}

impl HostPattern {
    /// Returns it as it is compared.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns what follows the first label, if that is `*`.
    fn suffix(&self) -> Option<&str> {
        self.0.strip_prefix("*.")
    }

    /// Returns whether the host of an authority is meant, whatever its port.
    pub fn matches(&self, authority: &str) -> bool {
        let host = host_of(authority);
        match self.suffix() {
            Some(suffix) => after_first_label(&host) == Some(suffix),
            None => self.0 == *host,
        }
    }
}

impl FromStr for HostPattern {
    type Err = HostError;

    fn from_str(text: &str) -> Result<HostPattern, HostError> {
        let name = text.strip_prefix("*.").unwrap_or(text);
        let is_label = |label: &str| {
            !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        let is_name = name.len() <= NAME_BYTES && name.split('.').all(is_label);
        let is_address = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let is_address = is_address.is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok());
        if is_name || is_address {
            return Ok(HostPattern(text.to_ascii_lowercase()));
        }
        Err(HostError { found: text.to_owned() })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the host of an authority: in lower case, without a port and without the dot that a whole name may end with.
fn host_of(authority: &str) -> Cow<'_, str> {
    let (name, port) = authority.rsplit_once(':').unwrap_or((authority, ""));
    // The last part of an address of IPv6 is no port: that is behind a `]`.
    let has_port = port.bytes().all(|byte| byte.is_ascii_digit()) && (!name.contains(':') || name.ends_with(']'));
    let host = if has_port { name } else { authority };
    let host = host.strip_suffix('.').unwrap_or(host);
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Owned(host.to_ascii_lowercase());
    }
    Cow::Borrowed(host)
}

fn after_first_label(host: &str) -> Option<&str> {
    host.split_once('.').filter(|(label, _)| !label.is_empty()).map(|(_, rest)| rest)
}

/// A table of what belongs to which host.
#[derive(Clone, Debug)]
pub struct Hosts<T> {
    whole: HashMap<String, T>,
    /// By what follows `*.`.
    suffixes: HashMap<String, T>,
}

impl<T> Default for Hosts<T> {
    fn default() -> Hosts<T> {
        Hosts { whole: HashMap::new(), suffixes: HashMap::new() }
    }
}

impl<T> Hosts<T> {
    /// Enters what belongs to a pattern, and returns what it has replaced.
    pub fn insert(&mut self, pattern: &HostPattern, value: T) -> Option<T> {
        match pattern.suffix() {
            Some(suffix) => self.suffixes.insert(suffix.to_owned(), value),
            None => self.whole.insert(pattern.as_str().to_owned(), value),
        }
    }

    /// Finds what belongs to the host of an authority, by the nearest pattern.
    pub fn find(&self, authority: &str) -> Option<&T> {
        if self.whole.is_empty() && self.suffixes.is_empty() {
            return None;
        }
        let host = host_of(authority);
        self.whole.get(&*host).or_else(|| self.suffixes.get(after_first_label(&host)?))
    }
}

/// A route of some hosts, or of every host if it names none.
#[derive(Clone, Debug)]
pub struct HostRoute<T> {
    /// Hosts that it is for; every one, if there is none.
    pub hosts: Vec<HostPattern>,
    /// Prefix of its paths.
    pub prefix: RoutePrefix,
    /// Target that answers there.
    pub target: T,
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a, T> {
    /// The route.
    Route(&'a RoutePrefix, &'a T),
    /// The host has routes, and none for this path.
    NoPath,
    /// Nothing is for this host.
    NoHost,
}

/// Routing table by host and path. Of the routes that are for a host the one with the longest prefix is found; of two with the same prefix the one
/// that names the host nearest.
#[derive(Clone, Debug)]
pub struct HostRoutes<T> {
    /// Routes of each host that is named, those of every host included.
    named: Hosts<Routes<T>>,
    /// Routes of every host.
    any: Option<Routes<T>>,
}

impl<T: Clone> HostRoutes<T> {
    /// Makes a table of these routes.
    ///
    /// # Errors
    ///
    /// The first prefix that is there twice for one host, with that host if one is named.
    pub fn new(routes: &[HostRoute<T>]) -> Result<HostRoutes<T>, (RoutePrefix, Option<HostPattern>)> {
        let of = |is_meant: &dyn Fn(&HostRoute<T>) -> bool| -> Vec<_> {
            let meant = routes.iter().filter(|route| is_meant(route));
            meant.map(|route| (route.prefix.clone(), route.target.clone())).collect()
        };
        let any = of(&|route| route.hosts.is_empty());
        let mut named = Hosts::default();
        for pattern in routes.iter().flat_map(|route| &route.hosts) {
            let mut own = of(&|route| route.hosts.contains(pattern));
            Routes::new(own.iter().cloned()).map_err(|prefix| (prefix, Some(pattern.clone())))?;
            // A whole name has what its pattern with `*` has besides, and everything what every host has.
            let wider = after_first_label(pattern.as_str()).filter(|_| pattern.suffix().is_none());
            let wider = wider.map(|suffix| HostPattern(format!("*.{suffix}")));
            let wider = of(&|route| wider.as_ref().is_some_and(|wider| route.hosts.contains(wider)));
            for (prefix, target) in wider.into_iter().chain(any.iter().cloned()) {
                if own.iter().all(|(known, _)| *known != prefix) {
                    own.push((prefix, target));
                }
            }
            let merged = Routes::new(own).map_err(|prefix| (prefix, Some(pattern.clone())))?;
            named.insert(pattern, merged);
        }
        let any = if any.is_empty() { None } else { Some(Routes::new(any).map_err(|prefix| (prefix, None))?) };
        Ok(HostRoutes { named, any })
    }

    /// Finds the route of a path at the host of an authority.
    pub fn find(&self, authority: &str, path: &str) -> Found<'_, T> {
        let Some(routes) = self.named.find(authority).or(self.any.as_ref()) else { return Found::NoHost };
        routes.find(path).map_or(Found::NoPath, |(prefix, target)| Found::Route(prefix, target))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> HostPattern {
        text.parse().unwrap()
    }

    fn table(routes: &[(&[&str], &str, u32)]) -> HostRoutes<u32> {
        let route = |&(hosts, prefix, target): &(&[&str], &str, u32)| HostRoute {
            hosts: hosts.iter().map(|host| pattern(host)).collect(),
            prefix: prefix.parse().unwrap(),
            target,
        };
        HostRoutes::new(&routes.iter().map(route).collect::<Vec<_>>()).unwrap()
    }

    fn found(table: &HostRoutes<u32>, authority: &str, path: &str) -> Option<u32> {
        match table.find(authority, path) {
            Found::Route(_, target) => Some(*target),
            Found::NoPath | Found::NoHost => None,
        }
    }

    #[test]
    fn a_host_is_compared_without_port_case_and_last_dot() {
        for (text, authority, is_meant) in [
            ("Shop.example", "shop.EXAMPLE:8000", true),
            ("shop.example", "shop.example.", true),
            ("shop.example", "shop.example.:1", true),
            ("shop.example", "shop.example.evil", false),
            ("shop.example", "evil.shop.example", false),
            ("shop.example", "shop.example:80x", false),
            ("shop.example", "", false),
            ("*.example", "a.example:1", true),
            ("*.example", "a.b.example", false),
            ("*.example", "example", false),
            ("*.example", ".example", false),
            ("[::1]", "[::1]:80", true),
            ("[::1]", "[::1]", true),
            ("[::1]", "[::2]", false),
            ("127.0.0.1", "127.0.0.1:8443", true),
        ] {
            assert_eq!(pattern(text).matches(authority), is_meant, "{text} and {authority}");
        }
    }

    #[test]
    fn what_is_no_host_says_what_one_is() {
        for text in [
            "", "*", "*.", "a..b", "http://a", "a:80", "a/b", "ä.de", "a.*.b", "*.*.b", "[::1", "[x]", "a b", ".a",
            "a.",
        ] {
            let error = text.parse::<HostPattern>().unwrap_err().to_string();
            assert!(
                error.contains("such as `api.example.com`") && error.ends_with(&format!("found `{text}`")),
                "{error}"
            );
        }
        assert!("a".repeat(254).parse::<HostPattern>().is_err());
    }

    #[test]
    fn the_longest_prefix_within_the_host_wins_and_of_one_prefix_the_nearest_host() {
        let routes = table(&[
            (&[], "/", 1),
            (&[], "/everywhere", 2),
            (&["api.example.com", "api.example.org"], "/", 3),
            (&["api.example.com"], "/v2", 4),
            (&["*.example.com"], "/", 5),
            (&["*.example.com"], "/stars", 6),
        ]);
        for (authority, path, expected) in [
            ("other", "/", 1),
            ("other", "/v2", 1),
            ("api.example.com", "/", 3),
            ("API.example.com:8443", "/v2/x", 4),
            ("api.example.com", "/everywhere/x", 2),
            ("api.example.com", "/stars", 6),
            ("api.example.org", "/v2", 3),
            ("www.example.com", "/v2", 5),
            ("www.example.com", "/everywhere", 2),
            ("a.www.example.com", "/stars", 1),
        ] {
            assert_eq!(found(&routes, authority, path), Some(expected), "{authority}{path}");
        }
    }

    #[test]
    fn a_host_that_nothing_is_for_is_told_from_a_path_that_nothing_is_for() {
        let routes = table(&[(&["a.example"], "/x", 1)]);
        assert_eq!(routes.find("b.example", "/x"), Found::NoHost);
        assert_eq!(routes.find("a.example", "/y"), Found::NoPath);
        assert_eq!(table(&[(&[], "/x", 1)]).find("b.example", "/y"), Found::NoPath);
        assert_eq!(table(&[]).find("b.example", "/y"), Found::NoHost);
    }

    #[test]
    fn a_prefix_is_there_once_for_each_host() {
        let route = |host: &str| HostRoute { hosts: vec![pattern(host)], prefix: "/a".parse().unwrap(), target: () };
        assert!(HostRoutes::new(&[route("a"), route("b")]).is_ok());
        let (prefix, host) = HostRoutes::new(&[route("a"), route("A")]).unwrap_err();
        assert_eq!((prefix.as_str(), host), ("/a", Some(pattern("a"))));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn it_finds_what_a_search_through_all_routes_finds(
            routes in prop::collection::vec((prop::collection::vec("([ab*]\\.)?[cd]\\.e", 0..3), "(/[ab]){1,3}|/"), 0..20),
            asked in prop::collection::vec(("([ab]\\.)?[cd]\\.e", "(/[ab]){0,4}"), 1..20),
        ) {
            let routes: Vec<HostRoute<usize>> = routes.iter().enumerate().map(|(target, (hosts, prefix))| HostRoute {
                hosts: hosts.iter().map(|host| pattern(host)).collect(),
                prefix: prefix.parse().unwrap(),
                target,
            }).collect();
            let Ok(table) = HostRoutes::new(&routes) else { return Ok(()) };
            for (authority, path) in &asked {
                let nearness = |route: &HostRoute<usize>| match &route.hosts[..] {
                    [] => Some(0),
                    hosts => hosts.iter().filter(|host| host.matches(authority)).map(|host| if host.suffix().is_some() { 1 } else { 2 }).max(),
                };
                let is_prefix = |prefix: &str| (prefix == "/" && path.starts_with('/'))
                    || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
                let fits = routes.iter().filter(|route| is_prefix(route.prefix.as_str()));
                let fits = fits.filter_map(|route| Some(((route.prefix.as_str().len(), nearness(route)?), route.target)));
                let expected = fits.max_by_key(|(rank, _)| *rank).map(|(_, target)| target);
                prop_assert_eq!(super::tests::found_usize(&table, authority, path), expected);
            }
        }
    }

    fn found_usize(table: &HostRoutes<usize>, authority: &str, path: &str) -> Option<usize> {
        match table.find(authority, path) {
            Found::Route(_, target) => Some(*target),
            Found::NoPath | Found::NoHost => None,
        }
    }
}

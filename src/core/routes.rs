//! The route table: which application a path belongs to, by the longest prefix that ends at a `/`.
//!
//! It is made as a whole and never changed, so that whoever routes has one table, old or new. A lookup costs a hash for each segment of the
//! path, and no more of them than the longest prefix has, however many routes there are and however long the path is.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

/// A prefix of paths: `/`, or `/` and segments without a `/` at the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoutePrefix(String);

/// A text that is no prefix. Its message says what was expected and found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {}, found `{}`", .expected, .found.escape_debug())]
pub struct PrefixError {
    found: String,
    expected: &'static str,
}

impl RoutePrefix {
    /// Returns the prefix of all paths.
    pub fn root() -> RoutePrefix {
        RoutePrefix("/".into())
    }

    /// Returns it as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns what a path begins with; nothing for the prefix of all paths.
    fn key(&self) -> &str {
        if self.0 == "/" { "" } else { &self.0 }
    }
}

impl FromStr for RoutePrefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<RoutePrefix, PrefixError> {
        let error = |expected| PrefixError { found: text.to_owned(), expected };
        let Some(rest) = text.strip_prefix('/') else { return Err(error("a prefix that begins with `/`")) };
        if text == "/" {
            return Ok(RoutePrefix::root());
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'\\')) {
            return Err(error("a prefix as in a path of a request, without query, spaces and control characters"));
        }
        if rest.ends_with('/') {
            return Err(error("a prefix without `/` at its end"));
        }
        // Clients resolve these before they ask.
        if rest.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
            return Err(error("a prefix without empty segments, `.` and `..`"));
        }
        Ok(RoutePrefix(text.to_owned()))
    }
}

impl fmt::Display for RoutePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Routing table: the target of each prefix of paths.
#[derive(Clone, Debug)]
pub struct Routes<T> {
    by_prefix: HashMap<String, (RoutePrefix, T)>,
    /// Segments of the longest prefix.
    depth: usize,
}

impl<T> Routes<T> {
    /// Makes a table of these routes.
    ///
    /// # Errors
    ///
    /// The first prefix that is there twice.
    pub fn new(routes: impl IntoIterator<Item = (RoutePrefix, T)>) -> Result<Routes<T>, RoutePrefix> {
        let mut table = Routes { by_prefix: HashMap::new(), depth: 0 };
        for (prefix, target) in routes {
            let key = prefix.key().to_owned();
            table.depth = table.depth.max(key.matches('/').count());
            if let Some((prefix, _)) = table.by_prefix.insert(key, (prefix, target)) {
                return Err(prefix);
            }
        }
        Ok(table)
    }

    /// Finds the route of a path, which is taken as it came: nothing is decoded, and a query is not part of it.
    pub fn find(&self, path: &str) -> Option<(&RoutePrefix, &T)> {
        if !path.starts_with('/') {
            return None;
        }
        // Where segments begin, and where the path ends; what is deeper than any prefix is not looked at.
        let ends = || path.match_indices('/').map(|(at, _)| at).chain([path.len()]).take(self.depth + 1);
        let longest_first = (0..ends().count()).rev().filter_map(|number| ends().nth(number));
        longest_first.filter_map(|end| self.by_prefix.get(&path[..end])).next().map(|(prefix, target)| (prefix, target))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(prefixes: &[&str]) -> Routes<usize> {
        let routes = prefixes.iter().enumerate().map(|(number, prefix)| (prefix.parse().unwrap(), number));
        Routes::new(routes).unwrap()
    }

    fn found<'a>(routes: &'a Routes<usize>, path: &str) -> Option<&'a str> {
        routes.find(path).map(|(prefix, _)| prefix.as_str())
    }

    #[test]
    fn the_longest_prefix_that_ends_at_a_slash_wins() {
        let routes = table(&["/", "/api", "/api/v2", "/a/b/c"]);
        for (path, expected) in [
            ("/", "/"),
            ("/x", "/"),
            ("/api", "/api"),
            ("/api/", "/api"),
            ("/apis", "/"),
            ("/api/v2", "/api/v2"),
            ("/api/v2/", "/api/v2"),
            ("/api/v21", "/api"),
            ("/api/v1/v2", "/api"),
            ("/a/b", "/"),
            ("/a/b/c/d/e/f", "/a/b/c"),
            ("/API", "/"),
            ("//api", "/"),
            ("/%61pi", "/"),
        ] {
            assert_eq!(found(&routes, path), Some(expected), "{path}");
        }
        assert_eq!((found(&routes, ""), found(&routes, "*"), found(&routes, "api")), (None, None, None));
        let without_root = table(&["/api"]);
        assert_eq!((found(&without_root, "/"), found(&without_root, "/apix")), (None, None));
        assert_eq!(found(&table(&[]), "/"), None);
        assert_eq!(found(&table(&["/"]), &"/".repeat(1 << 20)), Some("/"));
    }

    #[test]
    fn a_prefix_is_there_once() {
        let routes = ["/a", "/b", "/a"].map(|prefix| (prefix.parse::<RoutePrefix>().unwrap(), ()));
        assert_eq!(Routes::new(routes).unwrap_err().as_str(), "/a");
    }

    #[test]
    fn what_is_no_prefix_says_what_one_is() {
        for (text, expected) in [
            ("", "expected a prefix that begins with `/`, found ``"),
            ("api", "begins with `/`"),
            ("/api/", "without `/` at its end"),
            ("//", "without `/` at its end"),
            ("/a//b", "without empty segments"),
            ("/a/../b", "`.` and `..`"),
            ("/a?b", "without query"),
            ("/a b", "spaces"),
            ("/ä", "as in a path of a request"),
            ("/a\n", "found `/a\\n`"),
        ] {
            let error = text.parse::<RoutePrefix>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn it_finds_what_a_search_through_all_prefixes_finds(
            prefixes in prop::collection::hash_set("(/[ab]{1,2}){1,4}|/", 0..30),
            paths in prop::collection::vec("(/[ab]{0,2}){0,6}", 1..20),
        ) {
            let prefixes: Vec<&str> = prefixes.iter().map(String::as_str).collect();
            let routes = table(&prefixes);
            for path in &paths {
                let matches = |prefix: &&str| {
                    (*prefix == "/" && path.starts_with('/'))
                        || path.strip_prefix(*prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                };
                let expected = prefixes.iter().copied().filter(matches).max_by_key(|prefix| prefix.len());
                prop_assert_eq!(found(&routes, path), expected, "{}", path);
            }
        }
    }
}

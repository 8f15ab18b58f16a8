//! `module:attribute`, the way a hook is named.

use std::fmt;
use std::str::FromStr;

use crate::hook::error::HookError;

/// The name of a hook, split at the first `:` as in Ray. Both halves are non-empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportString {
    /// The module: a name, or the path of its library.
    pub module: String,
    /// The hook's name in the module; it may hold colons.
    pub attribute: String,
}

impl FromStr for ImportString {
    type Err = HookError;

    fn from_str(text: &str) -> Result<ImportString, HookError> {
        match text.split_once(':') {
            Some((module, attribute)) if !module.is_empty() && !attribute.is_empty() => {
                Ok(ImportString { module: module.into(), attribute: attribute.into() })
            }
            _ => Err(HookError::ImportString { given: text.into() }),
        }
    }
}

impl fmt::Display for ImportString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.module, self.attribute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_halves_are_needed() {
        let parsed: ImportString = "local_tmp_tracing:setup_tracing".parse().unwrap();
        assert_eq!((parsed.module.as_str(), parsed.attribute.as_str()), ("local_tmp_tracing", "setup_tracing"));
        assert_eq!("a:b.c:d".parse::<ImportString>().unwrap().attribute, "b.c:d");
        for bad in ["", ":", "module", "module:", ":attribute"] {
            let error = bad.parse::<ImportString>().unwrap_err();
            assert_eq!(
                error.to_string().lines().next().unwrap(),
                format!("a tracing hook is named `module:attribute`, but got `{bad}`")
            );
        }
    }
}

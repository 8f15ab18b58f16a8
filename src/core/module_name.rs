//! Names of modules: a path to a library, or a name that is looked for in the module path.

/// Returns whether `module` is a path rather than a name.
pub fn is_path(module: &str) -> bool {
    module.contains('/') || module.ends_with(".so")
}

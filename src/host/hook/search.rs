//! Search for the library of a module name.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use tracer_core::module_name::is_path;

use super::builtin;
use crate::hook::error::ModuleError;

/// The folders in which modules are looked for, in order, before those built into tracer.
#[derive(Clone, Debug, Default)]
pub struct SearchPath {
    /// `TRACER_MODULE_PATH`.
    pub module_path: Vec<PathBuf>,
    /// True if nothing is looked for in other folders.
    pub is_complete: bool,
}

/// Place of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Located {
    /// In this file. The path is absolute where the system could resolve it.
    Library(PathBuf),
    /// In tracer itself, under this name.
    BuiltIn(String),
}

impl SearchPath {
    /// Finds a module by name or, if `module` has a `/` or ends in `.so`, by path.
    pub fn locate(&self, module: &str) -> Result<Located, ModuleError> {
        let folders = self.folders();
        if let Some(located) = locate_in(&folders, module) {
            return Ok(located);
        }
        if is_path(module) {
            return Err(ModuleError::NoFile { path: PathBuf::from(module) });
        }
        let mut known = self.libraries();
        known.extend(builtin::names().map(String::from));
        Err(ModuleError::NotFound { module: module.into(), searched: folders, known })
    }

    /// Returns every place that is looked at, each once.
    pub fn folders(&self) -> Vec<PathBuf> {
        let mut folders = self.all_folders();
        let mut seen = HashSet::new();
        folders.retain(|folder| seen.insert(folder.clone()));
        folders
    }

    fn all_folders(&self) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> =
            self.module_path.iter().filter(|folder| !folder.as_os_str().is_empty()).cloned().collect();
        if self.is_complete {
            return folders;
        }
        if let Some(beside) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
            folders.push(beside.into());
            if let Some(prefix) = beside.parent() {
                folders.push(prefix.join("lib/tracer"));
            }
        }
        folders
    }

    /// Returns the names of the libraries in those places, whether or not they are modules.
    pub fn libraries(&self) -> Vec<String> {
        let mut names: Vec<_> = self
            .folders()
            .iter()
            .filter_map(|folder| folder.read_dir().ok())
            .flatten()
            .filter_map(|entry| {
                let name = entry.ok()?.file_name().into_string().ok()?;
                Some(name.strip_prefix("lib")?.strip_suffix(".so")?.to_owned())
            })
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

/// Finds a module by path, or by name in these folders and among what is built in.
pub fn locate_in(folders: &[PathBuf], module: &str) -> Option<Located> {
    if is_path(module) {
        let path = PathBuf::from(module).canonicalize().ok()?;
        return path.is_file().then_some(Located::Library(path));
    }
    let file_name = format!("lib{module}.so");
    if let Some(path) = folders.iter().map(|folder| folder.join(&file_name)).find(|path| path.is_file()) {
        return Some(Located::Library(path.canonicalize().unwrap_or(path)));
    }
    builtin::find(module).is_some().then(|| Located::BuiltIn(module.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_named_twice_is_looked_at_once() {
        let module_path = ["/a", "", "/b", "/a"].map(PathBuf::from).to_vec();
        let search = SearchPath { module_path, is_complete: true };
        assert_eq!(search.folders(), ["/a", "/b"].map(PathBuf::from));
    }
}

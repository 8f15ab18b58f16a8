//! What a service says of modules, checked before anything is changed, and set as the head needs it.

use std::path::Path;

use super::super::CommandError;
use crate::driver::Driver;
use crate::exit;
use crate::hook::{Located, SearchPath};
use crate::module_store::ModuleStore;
use crate::serving::service_file::{Deployment, Service};

/// Checks the modules of a service where the head looks for them, and notes which versions they have now.
pub(super) fn modules(driver: &Driver, service: &mut Service, folder: &Path) -> Result<(), CommandError> {
    let welcome = driver.welcome();
    let search = SearchPath { module_path: welcome.module_folders.clone(), is_complete: true };
    let store = ModuleStore::of_session(&welcome.session_dir);
    for deployment in service.applications.iter_mut().flat_map(|application| &mut application.deployments) {
        let version = version(&search, &store, deployment, folder)
            .map_err(|error| CommandError::new(exit::FAILED, format!("deployment `{}`: {error}", deployment.name)))?;
        deployment.module_version = version;
    }
    Ok(())
}

/// The version that the module of a deployment has now. A module that is given as a path becomes an absolute one.
fn version(
    search: &SearchPath,
    store: &ModuleStore,
    deployment: &mut Deployment,
    folder: &Path,
) -> Result<Option<u64>, String> {
    let path = deployment.import_path.clone();
    let (module, attribute) = path.rsplit_once(':').ok_or_else(|| not_an_import_path(&path))?;
    if module.is_empty() || attribute.is_empty() {
        return Err(not_an_import_path(&path));
    }
    let module = if module.contains('/') { folder.join(module).display().to_string() } else { module.to_owned() };
    let located = search.locate(&module).map_err(|error| crate::causes::with_causes(&error))?;
    let Located::Library(library) = located else { return Ok(None) };
    if module.contains('/') {
        deployment.import_path = format!("{}:{attribute}", library.display());
    }
    let taken = store.take(&library).map_err(|error| error.to_string())?;
    Ok(taken.map(|taken| taken.version.number()))
}

fn not_an_import_path(path: &str) -> String {
    format!("expected `module:attribute` such as `shop:app`, found `{}`", path.escape_debug())
}

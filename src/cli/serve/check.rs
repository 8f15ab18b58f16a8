//! Checks of the modules, arguments and exporters that a service names, before anything is changed, and resolution of their paths and versions.

use std::fmt;
use std::path::{Path, PathBuf};

use tracer_client::driver::Driver;
use tracer_core::count::Count;
use tracer_core::exit;
use tracer_host::hook::{HookContract, LoadedDeployment, Located, Module, ParameterDescription, SearchPath};
use tracer_host::module_store::ModuleStore;
use tracer_serving::certificates::{Certificates, PairError};
use tracer_settings::service_file::{Deployment, Service, Subject, check_import_path, place_of};

use super::super::CommandError;

/// Mistake in a service that its file alone does not tell.
#[derive(Debug)]
pub(super) struct Mistake {
    pub(super) subject: Subject,
    pub(super) reason: String,
}

impl Mistake {
    /// Names the line and the key of the service file with this text.
    pub(super) fn in_file(&self, file: &Path, text: &str) -> String {
        match place_of(text, &self.subject) {
            Some((line, key)) => format!("{}:{line}: `{key}`: {}", file.display(), self.reason),
            None => format!("{}: {self}", file.display()),
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.subject {
            Subject::Deployment { name, .. } => write!(f, "deployment `{name}`: {}", self.reason),
            Subject::Exporters | Subject::Address | Subject::Certificate { .. } => f.write_str(&self.reason),
        }
    }
}

impl From<Mistake> for CommandError {
    fn from(mistake: Mistake) -> CommandError {
        CommandError::new(exit::FAILED, mistake.to_string())
    }
}

/// Checks the certificates of a service, and its modules where the head looks for them, and notes which versions those have now.
pub(super) fn modules(driver: &Driver, service: &mut Service, folder: &Path) -> Result<(), Mistake> {
    let welcome = driver.welcome();
    let search = SearchPath { module_path: welcome.module_folders.clone(), is_complete: true };
    for exporter in &service.tracing.exporters {
        check_exporter(&search, exporter).map_err(|reason| Mistake { subject: Subject::Exporters, reason })?;
    }
    if let Some(tls) = &service.http.tls {
        Certificates::read(tls).map_err(|PairError { file, name, reason }| Mistake {
            subject: Subject::Certificate { name, key: file.key() },
            reason,
        })?;
    }
    let store = ModuleStore::of_session(&welcome.session_dir);
    for application in &mut service.applications {
        for deployment in &mut application.deployments {
            let checked = check_cwd(deployment).and_then(|()| version(&search, &store, deployment, folder));
            deployment.module_version = checked.map_err(|(key, reason)| {
                let (application, name) = (application.name.clone(), deployment.name.clone());
                Mistake { subject: Subject::Deployment { application, name, key }, reason }
            })?;
        }
    }
    Ok(())
}

/// Checks that a replica can begin in its folder.
fn check_cwd(deployment: &Deployment) -> Result<(), (&'static str, String)> {
    let Some(folder) = &deployment.cwd else { return Ok(()) };
    if folder.is_dir() {
        return Ok(());
    }
    let found = if folder.exists() { "which is none" } else { "which does not exist" };
    Err(("cwd", format!("expected a folder, found `{}`, {found}", folder.display())))
}

/// Returns the libraries that the modules of a service are in, those built in left out.
pub(super) fn libraries(driver: &Driver, service: &Service) -> Vec<PathBuf> {
    let search = SearchPath { module_path: driver.welcome().module_folders.clone(), is_complete: true };
    let deployments = service.applications.iter().flat_map(|application| &application.deployments);
    let modules = deployments.filter_map(|deployment| Some(deployment.import_path.rsplit_once(':')?.0));
    let mut libraries: Vec<_> = modules
        .filter_map(|module| match search.locate(module) {
            Ok(Located::Library(path)) => Some(path),
            Ok(Located::BuiltIn(_)) | Err(_) => None,
        })
        .collect();
    libraries.sort();
    libraries.dedup();
    libraries
}

/// Returns the version that the module of a deployment has now. A module that is given as a path becomes an absolute one.
fn version(
    search: &SearchPath,
    store: &ModuleStore,
    deployment: &mut Deployment,
    folder: &Path,
) -> Result<Option<u64>, (&'static str, String)> {
    let (version, found) = find(search, store, deployment, folder).map_err(|reason| ("import_path", reason))?;
    check_arguments(deployment, &found.parameters()).map_err(|reason| ("arguments", reason))?;
    deployment.authors_max_ongoing_requests = found.max_ongoing_requests();
    if let Some((function, size)) = found.largest_batch() {
        check_batch(deployment, &function, size).map_err(|reason| ("max_ongoing_requests", reason))?;
    }
    Ok(version)
}

/// Checks that as many requests are let in as are collected into one batch.
fn check_batch(deployment: &Deployment, function: &str, size: u32) -> Result<(), String> {
    let limit = deployment.ongoing_limit();
    if size <= limit {
        return Ok(());
    }
    Err(format!(
        "a replica handles {limit} requests at a time, and `{function}` collects up to {size} into a batch, which would never be full\n\
         (hint: `max_ongoing_requests = {size}` or more, or a `max_size` of its `#[batch]` of at most {limit})"
    ))
}

/// Loads the version of a deployment's module that there is now, and finds its handler there.
fn find(
    search: &SearchPath,
    store: &ModuleStore,
    deployment: &mut Deployment,
    folder: &Path,
) -> Result<(Option<u64>, LoadedDeployment), String> {
    let path = deployment.import_path.clone();
    check_import_path(&path)?;
    let (module, attribute) = path.rsplit_once(':').unwrap_or_default();
    let module = if module.contains('/') { folder.join(module).display().to_string() } else { module.to_owned() };
    let located = search.locate(&module).map_err(|error| tracer_core::causes::with_causes(&error))?;
    let taken = match &located {
        Located::Library(library) => store.take(library).map_err(|error| error.to_string())?,
        Located::BuiltIn(_) => None,
    };
    // What is checked is what is served, whatever becomes of the file meanwhile.
    let stored = taken.as_ref().and_then(|taken| Some((store.find(taken.version)?, taken.version)));
    let loaded = match stored {
        Some((stored, version)) => Module::load_copy(&module, &stored, String::leak(stored.name(version))),
        None => Module::load_at(&module, located.clone()),
    };
    let loaded = loaded.map_err(|error| tracer_core::causes::with_causes(&error))?;
    let found =
        LoadedDeployment::find(loaded, attribute, None).map_err(|error| tracer_core::causes::with_causes(&error))?;
    if let Located::Library(library) = located
        && module.contains('/')
    {
        deployment.import_path = format!("{}:{attribute}", library.display());
    }
    Ok((taken.map(|taken| taken.version.number()), found))
}

/// Checks that there is an exporter of that name.
fn check_exporter(search: &SearchPath, exporter: &str) -> Result<(), String> {
    check_import_path(exporter)?;
    let (module, attribute) = exporter.rsplit_once(':').unwrap_or_default();
    let loaded = Module::load(search, module).map_err(|error| tracer_core::causes::with_causes(&error))?;
    let hooks = loaded.describe().hooks;
    let exporters = || hooks.iter().filter(|hook| hook.contract == HookContract::Exporter).map(|hook| &*hook.name);
    if exporters().any(|name| name == attribute) {
        return Ok(());
    }
    let is_hook = hooks.iter().any(|hook| hook.name == attribute);
    let hint = match tracer_core::suggestion::hint(attribute, exporters()) {
        none if none.is_empty() && is_hook => {
            format!("\n(hint: it is a startup hook, which `tracer start --tracing-startup-hook={exporter}` takes)")
        }
        none if none.is_empty() => format!("\n(hint: `tracer modules show {module}` lists what is in it)"),
        hint => hint,
    };
    let known: Vec<_> = exporters().map(|name| format!("`{name}`")).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Err(format!("module `{module}` has no exporter `{attribute}`; it has {known}{hint}"))
}

/// Checks the arguments of a handler's creation against what its module says of them.
fn check_arguments(deployment: &Deployment, parameters: &[ParameterDescription]) -> Result<(), String> {
    let (found, expected) = (deployment.arguments.len(), parameters.len());
    if found != expected {
        let names: Vec<_> = parameters.iter().map(|one| format!("{}: {}", one.name, one.type_name)).collect();
        let takes = if names.is_empty() {
            "none".into()
        } else {
            format!("{}: `{}`", Count(expected, "argument"), names.join(", "))
        };
        return Err(format!("its handler takes {takes}; `arguments` has {found}"));
    }
    for (number, (argument, parameter)) in (1..).zip(deployment.arguments.iter().zip(parameters)) {
        if !can_be(argument, &parameter.type_name) {
            let ParameterDescription { name, type_name, .. } = parameter;
            return Err(format!("argument {number} (`{name}`): expected {type_name}, found `{argument}`"));
        }
    }
    Ok(())
}

/// Returns whether a value can be one of a type, as far as the type's name says: of a type that is not known, any can.
fn can_be(value: &serde_json::Value, type_name: &str) -> bool {
    match type_name {
        "String" | "&str" => value.is_string(),
        "bool" => value.is_boolean(),
        "u8" | "u16" | "u32" | "u64" | "usize" => value.is_u64(),
        "i8" | "i16" | "i32" | "i64" | "isize" => value.is_i64() || value.is_u64(),
        "f32" | "f64" => value.is_number(),
        _ => true,
    }
}

//! `tracer serve run --reload`: a library whose file has changed is rolled out again.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracer_client::driver::Driver;
use tracer_ipc::protocol::{ServiceQuery, ServiceRefusalCode};
use tracer_settings::service_file::Service;

use super::super::{CommandError, report};
use super::{Refused, check, deploy};

/// Interval between two looks at the files.
const INTERVAL: Duration = Duration::from_millis(200);

/// The state of a file by which a change is noticed: who replaces it, and who writes into it.
type Stamp = Option<(u64, u64, i64, i64)>;

fn stamps(libraries: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
    };
    libraries.iter().map(stamp).collect()
}

/// Libraries as they were at one moment.
#[derive(Clone)]
pub(super) struct Watched {
    libraries: Vec<PathBuf>,
    stamps: Vec<Stamp>,
}

impl Watched {
    /// Libraries as they are now; none if there are none.
    pub(super) fn now(libraries: Vec<PathBuf>) -> Option<Watched> {
        let stamps = stamps(&libraries);
        Some(Watched { libraries, stamps }).filter(|watched| !watched.libraries.is_empty())
    }
}

/// Watches libraries, and deploys the service again when one is another file and no more written.
pub(super) fn start(place: &Path, service: Service, folder: &Path, watched: Watched) {
    let (place, folder) = (place.to_owned(), folder.to_owned());
    let Watched { libraries, stamps: mut deployed } = watched;
    let watch = move || {
        loop {
            let before = stamps(&libraries);
            std::thread::sleep(INTERVAL);
            let now = stamps(&libraries);
            // One that is missing is about to be replaced, one that changes is being written.
            if now == deployed || now != before || now.contains(&None) {
                continue;
            }
            match deploy_again(&place, &service, &folder) {
                Ok(true) => deployed = now,
                Ok(false) => {}
                Err(error) => {
                    report::warning(&format!(
                        "not reloaded: {}",
                        tracer_core::causes::with_causes(error.error.as_ref())
                    ));
                    deployed = now;
                }
            }
        }
    };
    std::thread::spawn(watch);
}

/// Deploys what there is now. False if it has to be tried again, because another version is being rolled out.
fn deploy_again(place: &Path, service: &Service, folder: &Path) -> Result<bool, CommandError> {
    let mut driver = Driver::connect(place)?;
    let mut service = service.clone();
    check::modules(&driver, &mut service, folder)?;
    let query = ServiceQuery::Deploy { service: Box::new(service), is_dry_run: false, is_bound: false };
    match deploy::accepted(&mut driver, query) {
        Ok(accepted) => {
            report::talk(&format!("the library has changed: version {} is rolled out", accepted.version));
            Ok(true)
        }
        Err(error) if is_busy(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_busy(error: &CommandError) -> bool {
    let refused = error.error.downcast_ref::<Refused>();
    refused.is_some_and(|Refused(refusal)| refusal.code == ServiceRefusalCode::Busy)
}

//! `tracer serve run` and `build`.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io::Read;
use std::net::SocketAddr;
use std::num::ParseIntError;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use tracer_client::driver::{Driver, DriverError};
use tracer_client::search_path;
use tracer_core::address::LoopbackAddress;
use tracer_core::exit;
use tracer_ipc::protocol::{ServiceEvent, ServiceNews, ServiceQuery};
use tracer_ipc::serving::Deployment;
use tracer_ipc::session::SessionError;
use tracer_settings::render::render;
use tracer_settings::service_file::{
    Service, attribute_of, check_command, check_import_path, check_name, check_replicas, local_address, parse,
    program_name,
};

use super::super::start::OwnHead;
use super::super::{CommandError, CommandResult, PlaceArgs, report, submit};
use super::console::Console;
use super::reload::Watched;
use super::tail::{TailLine, Tails};
use super::{ask, check, deploy, follow, reload, services};

/// Interval between two reads of new output.
const INTERVAL: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    service: ServiceOfArgs,
    /// Roll out the library again each time that its file changes
    #[arg(long)]
    reload: bool,
    /// Show each span as a line when it has ended
    #[arg(long)]
    console: bool,
    #[command(flatten)]
    place: PlaceArgs,
}

/// A service of one deployment.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ServiceOfArgs {
    /// The handler of requests: a deployment of a library, as `module:name`
    #[arg(
        value_name = "MODULE:NAME",
        value_parser = |text: &str| check_import_path(text).map(|()| text.to_owned()),
        required_unless_present = "command",
        conflicts_with = "command"
    )]
    import_path: Option<String>,
    /// A program that speaks HTTP, with its arguments: it listens at `{socket}`, a Unix socket, or `{port}`, which are among them
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// Address to listen on, on this machine alone; port 0 for one that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000", value_parser = parse_address)]
    address: LoopbackAddress,
    /// Number of its processes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_replicas)]
    num_replicas: u32,
    /// Set a variable in the environment of its processes, or with NAME alone take its value from here; may be repeated
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<OsString>,
    /// Give its processes the whole environment of this command on top of the head's, but for variables of tracer
    #[arg(long)]
    inherit_env: bool,
    /// The name of the service, and of a program's deployment [default: that of the deployment, or of the program's file]
    #[arg(long, value_name = "NAME", value_parser = |text: &str| check_name(text).map(|()| text.to_owned()))]
    name: Option<String>,
}

fn parse_address(text: &str) -> Result<LoopbackAddress, String> {
    let hint =
        "a service file with `public = true` in `[http]` is for other machines too; `tracer serve build` prints one";
    local_address(text, hint)
}

fn parse_replicas(text: &str) -> Result<u32, String> {
    check_replicas(text.parse().map_err(|error: ParseIntError| error.to_string())?)
}

impl ServiceOfArgs {
    /// Returns the service file that says the same.
    fn service(&self) -> Result<Service, CommandError> {
        let quoted = |text: &str| serde_json::to_string(text).unwrap_or_default();
        let (own_name, ingress, handler) = match &self.import_path {
            Some(path) => {
                let line = format!("import_path = {}\n", quoted(path));
                (attribute_of(path).to_owned(), line.clone(), line)
            }
            None => {
                check_command(&self.command).map_err(|reason| CommandError::new(exit::USAGE, reason))?;
                let words: Vec<_> = self.command.iter().map(|word| quoted(word)).collect();
                let folder = std::env::current_dir()?;
                let mut lines =
                    format!("command = [{}]\ncwd = {}\n", words.join(", "), quoted(&folder.to_string_lossy()));
                if let Some(name) = &self.name {
                    // The first word may be that of a wrapper.
                    lines.push_str(&format!("name = {}\n", quoted(name)));
                }
                (program_name(&self.command[0]), String::new(), lines)
            }
        };
        let text = format!(
            "name = {}\n[http]\naddress = {}\n[[applications]]\n{ingress}\
             [[applications.deployments]]\n{handler}num_replicas = {}\n",
            quoted(self.name.as_ref().unwrap_or(&own_name)),
            quoted(&self.address.to_string()),
            self.num_replicas,
        );
        // What is not fit for it was refused with its flag.
        let service = parse(&text, Path::new("/"));
        let mut service = service.map_err(|error| CommandError::new(exit::USAGE, error.to_string()))?;
        let environment = self.environment()?;
        deployments(&mut service).for_each(|deployment| deployment.env.extend(environment.clone()));
        Ok(service)
    }

    /// Returns the variables that are set here. A service file holds text.
    fn environment(&self) -> Result<BTreeMap<String, String>, CommandError> {
        let set = submit::environment(&self.env, false)?;
        if let Some((name, _)) = set.iter().find(|(name, value)| name.to_str().is_none() || value.to_str().is_none()) {
            let text = format!("`--env` got `{}`, which is not UTF-8 with its value", name.display());
            return Err(CommandError::new(exit::USAGE, text));
        }
        let inherited = if self.inherit_env { submit::environment(&[], true)? } else { BTreeMap::new() };
        let pairs = inherited.into_iter().chain(set);
        let pairs = pairs.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Ok(pairs.filter(|(name, _)| !self.inherit_env || self.names(name) || !name.starts_with("TRACER_")).collect())
    }

    /// Returns whether `--env` sets this variable.
    fn names(&self, variable: &str) -> bool {
        self.env.iter().any(|set| set.to_str().and_then(|set| set.split('=').next()) == Some(variable))
    }
}

fn deployments(service: &mut Service) -> impl Iterator<Item = &mut Deployment> {
    service.applications.iter_mut().flat_map(|application| &mut application.deployments)
}

/// Has the programs of a service looked for where those of this command are.
fn set_search_path(service: &mut Service, head_pid: u32) {
    let found_here = search_path::differing(head_pid);
    for deployment in deployments(service).filter(|deployment| deployment.program().is_some()) {
        for (name, value) in &found_here {
            if let Some(value) = value.to_str() {
                deployment.env.entry((*name).to_owned()).or_insert_with(|| value.to_owned());
            }
        }
    }
}

pub(super) fn build(args: &ServiceOfArgs) -> CommandResult {
    report::text(render(&args.service()?).trim_end());
    Ok(exit::OK)
}

pub(super) fn run(args: &Args) -> CommandResult {
    let mut service = args.service.service()?;
    let place = args.place.temp_dir();
    let signals = signals()?;
    let (mut driver, own) = connect(&place)?;
    set_search_path(&mut service, driver.welcome().head_pid);
    let served = serve(&mut driver, &mut service, args, signals);
    drop(driver);
    if let Some(own) = own {
        own.end()?;
    }
    served
}

/// Connects to the head of the place, or starts one.
fn connect(place: &Path) -> Result<(Driver, Option<OwnHead>), CommandError> {
    match Driver::connect(place) {
        Err(DriverError::Session(SessionError::NoHead { .. })) => {
            let own = OwnHead::start(place)?;
            Ok((Driver::connect(place)?, Some(own)))
        }
        connected => Ok((connected?, None)),
    }
}

/// Descriptor that is readable when this command is to end.
fn signals() -> Result<UnixStream, CommandError> {
    let (signals, signal_tx) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, signal_tx.try_clone()?)?;
    }
    Ok(signals)
}

fn serve(driver: &mut Driver, service: &mut Service, args: &Args, signals: UnixStream) -> CommandResult {
    let place = args.place.temp_dir();
    let folder = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let as_said = service.clone();
    check::modules(driver, service, &folder)?;
    let mut watched = None;
    if args.reload {
        watched = Watched::now(check::libraries(driver, service));
        if watched.is_none() {
            let text = "the module is built in, so it has no file that --reload could watch";
            return Err(CommandError::new(exit::USAGE, text));
        }
        // What has changed since the first look is what is watched.
        check::modules(driver, service, &folder)?;
    }
    let query = ServiceQuery::Deploy { service: Box::new(service.clone()), is_dry_run: false, is_bound: true };
    let accepted = deploy::accepted(driver, query)?;
    let spans_dir = args.console.then(|| driver.welcome().tracing.spans_dir.clone());
    let output = Output::start(&driver.welcome().session_dir, &service.name, spans_dir);
    end_on_signal(signals, place.clone(), service.name.clone());
    let (mut after, mut served) = (accepted, None);
    let mut tell = |event: &ServiceEvent| {
        output.heard_of(event);
        follow::talk(event);
    };
    loop {
        let news = follow::until_done(driver, &after, &mut tell);
        if news.is_err() || matches!(news, Ok(ServiceNews::ShutDown)) {
            output.end();
        }
        match news? {
            ServiceNews::RolledOut { version } => {
                let rows = services(driver, Some(&service.name))?;
                if let Some(row) = rows.first() {
                    report::text(&row.url);
                    service.http.address = address_of(&row.url).unwrap_or(service.http.address);
                }
                if let Some(watched) = watched.take() {
                    let next = Service { http: service.http.clone(), ..as_said.clone() };
                    reload::start(&place, next, &folder, watched);
                }
                served = Some(version);
            }
            ServiceNews::RolloutFailed { version, reason } => match served {
                Some(served) => report::talk(&format!(
                    "version {version} could not be rolled out, and version {served} is served on: {reason}"
                )),
                None => {
                    output.end();
                    return Err(CommandError::new(exit::FAILED, format!("the service could not be started: {reason}")));
                }
            },
            _ => return Ok(exit::OK),
        }
        after.after = output.last_event();
    }
}

fn address_of(url: &str) -> Option<SocketAddr> {
    let address = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
    address.strip_suffix('/')?.parse().ok()
}

/// Shuts the service down at the first signal, and ends this command at once at the second one.
fn end_on_signal(mut signals: UnixStream, place: PathBuf, service: String) {
    let end = move || {
        let mut byte = [0];
        if signals.read_exact(&mut byte).is_err() {
            return;
        }
        report::talk("finishing requests in progress (Ctrl-C again ends the service at once)");
        std::thread::spawn(move || {
            let mut again = [0];
            if signals.read_exact(&mut again).is_ok() {
                std::process::exit(exit::INTERRUPTED.into());
            }
        });
        let ended = Driver::connect(&place)
            .map_err(CommandError::from)
            .and_then(|mut driver| ask(&mut driver, ServiceQuery::ShutDown { service }));
        if let Err(error) = ended {
            report::error(error.error.as_ref());
            std::process::exit(exit::INTERRUPTED.into());
        }
    };
    std::thread::spawn(end);
}

/// News of a file that is read.
enum LogNews {
    /// A file that is to be read too, with what its lines begin with.
    Begun(PathBuf, String),
    /// A file whose writer has ended.
    Ended(PathBuf),
}

/// Follower of replicas' output and of the access log.
struct Output {
    folder: PathBuf,
    service: String,
    /// A channel, so that nobody who hears of events waits for what is printed.
    more: mpsc::Sender<LogNews>,
    /// Names of the processes, by pid.
    names: Arc<Mutex<HashMap<u32, String>>>,
    has_ended: Arc<AtomicBool>,
    last_event: Mutex<u64>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Output {
    fn start(session_dir: &Path, service: &str, spans_dir: Option<PathBuf>) -> Output {
        let folder = session_dir.join("logs/serve");
        let mut tails = Tails::default();
        // Other services of this head write there too.
        tails.add_from_end(&folder.join("access.log"));
        let (more, added) = mpsc::channel();
        let has_ended = Arc::new(AtomicBool::new(false));
        let names = Arc::new(Mutex::new(HashMap::new()));
        let mut console = spans_dir.map(|folder| Console::start(&folder, Arc::clone(&names)));
        let ended = Arc::clone(&has_ended);
        let own = format!(" service={service}");
        let thread = std::thread::spawn(move || {
            let is_others = |line: &str| line.contains(" service=") && !line.ends_with(&own);
            loop {
                let is_last = ended.load(SeqCst);
                added.try_iter().for_each(|news| match news {
                    LogNews::Begun(path, prefix) => tails.add(&path, prefix),
                    LogNews::Ended(path) => tails.end(&path),
                });
                let has_more = tails.take(|TailLine { prefix, text, .. }| match prefix {
                    "" if is_others(text) => {}
                    prefix => report::talk(&format!("{prefix}{text}")),
                });
                console.iter_mut().for_each(Console::show);
                match (has_more, is_last) {
                    (true, _) => {}
                    (false, true) => return,
                    (false, false) => std::thread::sleep(INTERVAL),
                }
            }
        });
        let (last_event, thread) = (Mutex::new(0), Mutex::new(Some(thread)));
        Output { folder, service: service.into(), more, names, has_ended, last_event, thread }
    }

    fn heard_of(&self, event: &ServiceEvent) {
        *self.last_event.lock().unwrap_or_else(PoisonError::into_inner) = event.number;
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let ServiceNews::ProxyStarted { pid } = &event.what {
            names.insert(*pid, format!("(proxy pid={pid}) "));
        }
        let log = |replica: &str, pid: &u32| {
            self.folder.join(format!("replica-{}-{}-{pid}.log", self.service, replica.replace('#', "-")))
        };
        // It reads for as long as this is there.
        let _ = match &event.what {
            ServiceNews::ReplicaStarted { replica, pid } => {
                let prefix = format!("(replica {replica} pid={pid}) ");
                names.insert(*pid, prefix.clone());
                self.more.send(LogNews::Begun(log(replica, pid), prefix))
            }
            ServiceNews::ReplicaLost { replica, pid: Some(pid), .. }
            | ServiceNews::ReplicaEnded { replica, pid: Some(pid) } => {
                self.more.send(LogNews::Ended(log(replica, pid)))
            }
            _ => Ok(()),
        };
    }

    fn last_event(&self) -> u64 {
        *self.last_event.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows what is left, and no more.
    fn end(&self) {
        self.has_ended.store(true, SeqCst);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // It ends with the next look.
            let _ = thread.join();
        }
    }
}

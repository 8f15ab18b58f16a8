//! The server of `tracer view`: connections, who is let in, and the head that it asks, if one runs.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::sync::Semaphore;
use tracer_client::driver::Driver;
use tracer_core::lock::lock;
use tracer_core::parameters;
use tracer_core::problem::{self, Problem};
use tracer_ipc::protocol::{Query, Reply};

use super::answers::{Answer, READERS, Traces, file_answer, nothing_at, read_code, token_answer, unreadable};
use super::links::Links;
use super::page;
use super::source::Session;
use crate::http_api::access::{self, Claims, Role};
use crate::http_api::body::Body;
use crate::http_api::connection::Socket;
use crate::http_api::limits;
use crate::http_api::reports::{self, Head, ServiceList, TasksAsked, task_id};

/// Connections at one time; further ones wait until one has ended. A browser has six to a server.
const CONNECTIONS: usize = 128;
/// Pause when no connection can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// State that requests share.
pub(super) struct Server {
    address: SocketAddr,
    links: Arc<Links>,
    traces: Arc<Traces>,
    head: HeadLink,
    /// Answers with large results that are in memory.
    large: Arc<Semaphore>,
}

/// The head of a place, which may come and go while the page is served.
struct HeadLink {
    /// None if the folder that is shown is no head's.
    temp_dir: Option<PathBuf>,
    driver: Arc<Mutex<Option<Driver>>>,
}

impl HeadLink {
    /// Does something with the connection, on a thread that may wait; another one is made if the head has gone.
    async fn with<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Driver) -> Result<T, tracer_client::driver::DriverError> + Send + 'static,
    ) -> Result<T, Problem> {
        let none = |text: String| Problem::new(problem::UNAVAILABLE, text).header(header::RETRY_AFTER, "1");
        let Some(temp_dir) = self.temp_dir.clone() else {
            return Err(none("a folder is shown, without a head".into()));
        };
        let driver = Arc::clone(&self.driver);
        let acted = tokio::task::spawn_blocking(move || {
            let mut driver = lock(&driver);
            let connected = match driver.take() {
                Some(connected) => Ok(connected),
                None => Driver::connect(&temp_dir),
            };
            let mut connected = connected?;
            let acted = act(&mut connected)?;
            // One with a failure is not used again.
            *driver = Some(connected);
            Ok::<_, tracer_client::driver::DriverError>(acted)
        });
        match acted.await {
            Ok(acted) => acted.map_err(|error| none(error.to_string())),
            Err(error) => Err(unreadable(error)),
        }
    }
}

impl Head for HeadLink {
    async fn ask(&self, query: Query) -> Result<Reply, Problem> {
        self.with(move |driver| driver.query(&query)).await
    }

    async fn session_dir(&self) -> Result<PathBuf, Problem> {
        self.with(|driver| Ok(driver.welcome().session_dir.clone())).await
    }
}

/// Serves until `ended` is readable.
pub(super) fn run(listener: TcpListener, server: Server, ended: UnixStream) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(READERS)
        .build()?;
    let served = runtime.block_on(serve(Arc::new(server), listener, ended));
    // Whoever still reads files is not waited for.
    runtime.shutdown_background();
    served
}

async fn serve(server: Arc<Server>, listener: TcpListener, ended: UnixStream) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    ended.set_nonblocking(true)?;
    let mut ended = tokio::net::UnixStream::from_std(ended)?;
    let accepting = tokio::spawn(accept(server, listener));
    let mut byte = [0];
    let _ = ended.read(&mut byte).await;
    accepting.abort();
    Ok(())
}

async fn accept(server: Arc<Server>, listener: tokio::net::TcpListener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let server = Arc::clone(&server);
        tokio::spawn(async move {
            let _place = place;
            let service = service_fn(|request| {
                let server = Arc::clone(&server);
                async move { Ok::<_, Infallible>(server.answer(request).await) }
            });
            let stream = Socket::new(stream, limits::WRITE_TIME);
            // An error is the client's: it has gone, or sends what is no HTTP.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits::HEAD_TIME)
                .max_buf_size(limits::HEAD_BYTES)
                .max_headers(limits::HEADERS)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

impl Server {
    pub(super) fn new(address: SocketAddr, links: Arc<Links>, folder: PathBuf, temp_dir: Option<PathBuf>) -> Server {
        let session = temp_dir.clone().map_or(Session::None, Session::OfHead);
        Server {
            address,
            links,
            traces: Traces::new(folder, session),
            head: HeadLink { temp_dir, driver: Arc::default() },
            large: Arc::new(Semaphore::new(limits::LARGE_ANSWERS)),
        }
    }

    /// Answers a request.
    async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let answer = match self.check_access(&request) {
            Ok(role) => self.serve(request, role).await,
            Err(problem) => Err(problem),
        };
        let mut response = answer.unwrap_or_else(|problem| problem.into_response(Body::whole));
        page::add_headers(response.headers_mut());
        response
    }

    /// Checks the name and the origin of every request, and the token of all but those for the page's files and for a token. Returns what the token
    /// is good for.
    fn check_access(&self, request: &Request<Incoming>) -> Result<Option<Role>, Problem> {
        let all = |name| request.headers().get_all(name).into_iter().map(HeaderValue::as_bytes).collect::<Vec<_>>();
        let (hosts, origins, authorizations) = (all(header::HOST), all(header::ORIGIN), all(header::AUTHORIZATION));
        let claims = Claims {
            authority: request.uri().authority().map(|authority| authority.as_str()),
            hosts: &hosts,
            origins: &origins,
            authorizations: &authorizations,
        };
        let path = request.uri().path();
        let checked = access::check_names(&claims, self.address).and_then(|()| {
            let is_open = page::find(path).is_some() || path == "/api/v1/viewer";
            if is_open { Ok(None) } else { access::check_token(&claims, |token| self.links.role(token)).map(Some) }
        });
        checked.map_err(|denied| {
            let address = self.address;
            let own = format!("this server is http://{address} and http://localhost:{}", address.port());
            let another = "the page of another link is not let in: `tracer view` makes a new link";
            match denied {
                access::Denied::HostMissing => {
                    Problem::new(problem::INVALID, "the request has not exactly one `Host`").hint(own)
                }
                access::Denied::Host(host) => {
                    Problem::new(problem::FORBIDDEN_NAME, format!("`{host}` is not a name of this server")).hint(own)
                }
                access::Denied::Origin(origin) => {
                    let text = format!("the request comes from a page of `{origin}`");
                    Problem::new(problem::FORBIDDEN_ORIGIN, text).hint(own)
                }
                access::Denied::TokenMissing => {
                    Problem::new(problem::UNAUTHORIZED, "the request has no `Authorization: Bearer` with a token")
                        .hint(another)
                }
                access::Denied::TokenWrong => {
                    Problem::new(problem::UNAUTHORIZED, "the token is not one of this server's").hint(another)
                }
            }
        })
    }

    async fn serve(&self, request: Request<Incoming>, role: Option<Role>) -> Answer {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        let query = parts.uri.query().unwrap_or_default();
        let is_get = matches!(parts.method, Method::GET | Method::HEAD);
        if let Some(answer) = file_answer(path) {
            return allowed(is_get, "GET, HEAD", path).map(|()| answer);
        }
        let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let ["api", "v1", rest @ ..] = segments.as_slice() else { return Err(nothing_at(path)) };
        match rest {
            ["viewer"] => {
                allowed(parts.method == Method::POST, "POST", path)?;
                let exchanged = self.links.exchange(&read_code(body).await?, Instant::now()).map_err(unreadable)?;
                token_answer(exchanged.as_ref().map(|(token, role)| (token.as_str(), *role)))
            }
            ["tasks", id, "cancel"] => {
                allowed(parts.method == Method::POST, "POST", path)?;
                if role != Some(Role::Control) {
                    return Err(Problem::new(problem::FORBIDDEN_ROLE, "the token of viewers only reads")
                        .hint("`tracer view --control` makes a link that may cancel"));
                }
                reports::cancel(&self.head, task_id(id)?, query).await
            }
            rest => {
                let about_head = self.report(rest, query);
                allowed(is_get, "GET, HEAD", path)?;
                match about_head.await {
                    Some(answer) => answer,
                    None => self.traces.answer(rest, &parts).await,
                }
            }
        }
    }

    /// Answers what the head is asked; none for what is no question for it.
    async fn report(&self, segments: &[&str], query: &str) -> Option<Answer> {
        let head = &self.head;
        let plain = |query| parameters::parse(query, &[]).map(drop);
        let checked = match segments {
            ["tasks"] => Ok(()),
            ["tasks", _] | ["workers" | "actors" | "services" | "deployments" | "replicas" | "status" | "summary"] => {
                plain(query)
            }
            _ => return None,
        };
        if let Err(problem) = checked {
            return Some(Err(problem));
        }
        Some(match segments {
            ["tasks"] => match TasksAsked::parse(query) {
                Ok(asked) => reports::tasks(head, &asked).await,
                Err(problem) => Err(problem),
            },
            ["tasks", id] => match task_id(id) {
                Ok(id) => reports::task(head, id, StatusCode::OK, &self.large).await,
                Err(problem) => Err(problem),
            },
            ["workers"] => reports::workers(head).await,
            ["actors"] => reports::actors(head).await,
            ["services"] => reports::services(head, ServiceList::Services).await,
            ["deployments"] => reports::services(head, ServiceList::Deployments).await,
            ["replicas"] => reports::services(head, ServiceList::Replicas).await,
            ["status"] => reports::status(head).await,
            _ => reports::summary(head).await,
        })
    }
}

fn allowed(is_allowed: bool, methods: &'static str, path: &str) -> Result<(), Problem> {
    if is_allowed {
        return Ok(());
    }
    let text = format!("`{}` takes {methods}", path.escape_debug());
    Err(Problem::new(problem::WRONG_METHOD, text).header(header::ALLOW, methods))
}

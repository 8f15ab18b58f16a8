//! Inter-process communication of one session: the messages between them and the connections that carry them, spools, the files of large
//! values, the session's folder, and the identity of a process.
//!
//! **For** head, workers and drivers alike. **Uses** `tracer-core`, and `tracer-abi` for the form of a span in a spool.
//!
//! **Never** decides what a task does next, starts or signals a process, loads a library, runs a hook, or prints (but [`fork`], when a
//! forked copy of a worker ends). `unsafe` code is here for shared memory, rings, spools and mapped values, for `fork`, and for the scheduling of a thread.
//!
//! | | |
//! |---|---|
//! | [`protocol`] | messages between head, workers and drivers, and their frames |
//! | [`channel`] | transport of one connection: a Unix stream socket, upgraded on request to a pair of shared-memory ring buffers |
//! | [`shared_memory`] | words of a sealed file that several processes have mapped |
//! | [`replica_table`] | what all callers of the replicas of a service share: who may be called, and how many requests are in flight |
//! | [`lane`] | frames between a caller and a replica |
//! | [`control`], [`serving`] | orders to the processes of a service, with files, and reports; what a service is |
//! | [`calling`] | the same for callers of deployments that are no proxies |
//! | [`background`] | scheduling of a thread that does what can wait |
//! | [`spin`] | adaptive busy-polling before a blocking wait |
//! | [`claims`] | compare-and-swap entries by which two processes agree who has begun what |
//! | [`spool`] | claims and spans of one process in shared memory, from which others finish its story |
//! | [`stored`] | files of large values |
//! | [`task_output`] | marks in the pipes of workers, and the index beside each log |
//! | [`session`] | the folder of a session, its lock and its record |
//! | [`environment`], [`start_report`] | the variables and folders of a session; what a head that has started says |
//! | [`identity`] | which process a number means: birth times against reused pids |
//! | [`place_file`] | the id of a place |
//! | [`http_place`], [`http_codes`] | the files of the HTTP API: settings and tokens; codes of links to the page |
//! | [`private_file`] | small files of a session |
//! | [`page`] | the size of a page |
//! | [`fork`] | a word of memory that a forked child finds wiped |
//! | [`fault`] | points at which a test may have a process killed |

pub mod background;
pub mod calling;
pub mod channel;
pub mod claims;
pub mod control;
pub mod environment;
pub mod fault;
pub mod fork;
pub mod http_codes;
pub mod http_place;
pub mod identity;
pub mod lane;
pub mod metrics;
pub mod page;
mod pages;
pub mod place_file;
pub mod private_file;
pub mod protocol;
pub mod replica_table;
pub mod serving;
pub mod session;
pub mod shared_memory;
pub mod spin;
pub mod spool;
pub mod start_report;
pub mod stored;
pub mod task_output;

/// The version of tracer.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

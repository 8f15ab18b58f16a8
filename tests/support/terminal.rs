//! Commands that run in a terminal.

use std::fs::File;
use std::io::Read;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use super::Cluster;

/// Returns what comes out of a pseudo terminal of 24 rows and 100 columns in which a command runs.
pub fn in_a_terminal(cluster: &Cluster, arguments: &[&str]) -> (Child, Arc<Mutex<String>>) {
    run_in_a_terminal(cluster.command(arguments))
}

/// The same of a command that has what it needs. Its standard input stays what it is.
pub fn run_in_a_terminal(command: Command) -> (Child, Arc<Mutex<String>>) {
    let (running, screen, _keyboard) = start(command, false);
    (running, screen)
}

/// The same with the terminal as standard input too. What is written to the file is typed.
pub fn type_in_a_terminal(command: Command) -> (Child, Arc<Mutex<String>>, File) {
    start(command, true)
}

fn start(mut command: Command, has_keyboard: bool) -> (Child, Arc<Mutex<String>>, File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    let controller =
        openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("there are terminals");
    grantpt(&controller).and_then(|()| unlockpt(&controller)).expect("the terminal is ours");
    let name = ptsname(&controller, Vec::new()).expect("the terminal has a name");
    let terminal =
        File::options().read(true).write(true).open(name.to_str().expect("a plain name")).expect("it can be opened");
    let size = rustix::termios::Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&terminal, size).expect("it has a size");
    if has_keyboard {
        command.stdin(terminal.try_clone().expect("it can be cloned"));
    }
    command.stderr(terminal.try_clone().expect("it can be cloned")).stdout(terminal);
    // The terminal's last copy outside of the command goes with the value that starts it.
    let running = command.spawn().expect("tracer can be started");
    drop(command);
    let mut output = File::from(controller);
    let keyboard = output.try_clone().expect("it can be cloned");
    let screen = Arc::new(Mutex::new(String::new()));
    let shared = Arc::clone(&screen);
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        // That the other side is closed is an error here.
        while let Ok(count @ 1..) = output.read(&mut buffer) {
            shared.lock().expect("no reader panics").push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    });
    (running, screen, keyboard)
}

//! The terminal: what is drawn on it, and keys. Dropping it gives the terminal back as it was, also when something panics.

use std::io::{self, Stdout};
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::crossterm::{cursor, execute};
use ratatui::{Frame, Terminal};

/// A key that does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    /// To the other table.
    Other,
    Pause,
    Quit,
}

/// A terminal that is taken.
pub(super) struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    /// Takes the terminal of standard output: its other screen, and keys without echo.
    pub(super) fn take() -> io::Result<Screen> {
        enable_raw_mode()?;
        // From here on dropping it gives the terminal back.
        let mut screen = Screen(Terminal::new(CrosstermBackend::new(io::stdout()))?);
        execute!(screen.0.backend_mut(), EnterAlternateScreen, cursor::Hide)?;
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        Ok(screen)
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.0.draw(draw).map(|_| ())
    }

    /// Waits for a key, at most so long. A change of the terminal's size is none, and ends the wait.
    pub(super) fn key(&mut self, timeout: Duration) -> io::Result<Option<Key>> {
        if !event::poll(timeout)? {
            return Ok(None);
        }
        Ok(match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => key_of(key),
            _ => None,
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn give_back() {
    // Nobody is left to be told.
    let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
    let _ = disable_raw_mode();
}

fn key_of(key: KeyEvent) -> Option<Key> {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
        KeyCode::Char('j') | KeyCode::Down => Some(Key::Down),
        KeyCode::Char('k') | KeyCode::Up => Some(Key::Up),
        KeyCode::Tab | KeyCode::BackTab => Some(Key::Other),
        KeyCode::Char('p' | ' ') => Some(Key::Pause),
        _ => None,
    }
}

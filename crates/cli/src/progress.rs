//! Progress on a terminal, silence in a pipe.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::place::shown;

/// Progress of a long command, on standard error.
pub(crate) struct Progress(Option<Counter>);

struct Counter {
    bar: ProgressBar,
    files: std::cell::Cell<u64>,
}

impl Progress {
    /// Shown where standard error is a terminal and `wanted`.
    pub(crate) fn new(wanted: bool) -> Self {
        if !wanted || !std::io::stderr().is_terminal() {
            return Self::none();
        }
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {bytes} {bytes_per_sec} {prefix} {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(Some(Counter { bar, files: std::cell::Cell::new(0) }))
    }

    /// Never shown.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// What is being worked on.
    pub(crate) fn name(&self, name: &[u8]) {
        if let Some(counter) = &self.0 {
            counter.bar.set_message(shown(name));
        }
    }

    /// One more file is done.
    pub(crate) fn file(&self) {
        if let Some(counter) = &self.0 {
            counter.files.set(counter.files.get() + 1);
            counter.bar.set_prefix(format!("{} files", counter.files.get()));
        }
    }

    /// So many more bytes are done.
    pub(crate) fn bytes(&self, count: u64) {
        if let Some(counter) = &self.0 {
            counter.bar.inc(count);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(counter) = &self.0 {
            counter.bar.finish_and_clear();
        }
    }
}

/// Progress of a command that works in passes of known length, on standard error.
pub(crate) struct Passes(Option<ProgressBar>);

impl Passes {
    /// Shown where standard error is a terminal.
    pub(crate) fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{msg:12} [{wide_bar}] {percent}%");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self(Some(bar))
    }

    /// So far is a pass.
    pub(crate) fn show(&self, pass: &'static str, done: u64, total: u64) {
        if let Some(bar) = &self.0 {
            bar.set_message(pass);
            bar.set_length(total);
            bar.set_position(done);
        }
    }
}

impl Drop for Passes {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

//! Telling people what went wrong.

use std::fmt::Display;

use onggi_vfs::{Errno, Error};

use crate::place::shown;

/// What an errno means, without its number.
pub(crate) fn meaning(errno: Errno) -> String {
    without_numbers(&std::io::Error::from(errno).to_string())
}

/// An engine's error in words.
pub(crate) fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {}", meaning(error.errno()), shown(detail.to_string().as_bytes())),
        None => meaning(error.errno()),
    }
}

/// The system's words for an error number, without the number.
fn without_numbers(text: &str) -> String {
    let mut words = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(" (os error ") {
        words.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    words.push_str(rest);
    words
}

/// An error with what caused it, each said once.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let words = without_numbers(&cause.to_string());
        if text.is_empty() {
            text = words;
        } else if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
    }
    text
}

/// An error number about something.
pub(crate) fn about(errno: Errno, what: impl Display) -> anyhow::Error {
    anyhow::anyhow!("{what}: {}", meaning(errno))
}

/// Says what an error is about.
pub(crate) trait At<T> {
    /// `what: reason`.
    fn at(self, what: impl Display) -> anyhow::Result<T>;
}

impl<T> At<T> for onggi_vfs::Result<T> {
    fn at(self, what: impl Display) -> anyhow::Result<T> {
        self.map_err(|error| anyhow::anyhow!("{what}: {}", reason(&error)))
    }
}

impl<T> At<T> for std::io::Result<T> {
    fn at(self, what: impl Display) -> anyhow::Result<T> {
        self.map_err(|error| {
            if error.kind() == std::io::ErrorKind::BrokenPipe {
                return error.into();
            }
            anyhow::anyhow!("{what}: {}", without_numbers(&error.to_string()))
        })
    }
}

/// Complaints of a command that goes on after one.
pub(crate) struct Complaints {
    command: &'static str,
    quiet: bool,
    said: Vec<String>,
}

impl Complaints {
    pub(crate) fn of(command: &'static str) -> Self {
        Self { command, quiet: false, said: Vec::new() }
    }

    /// Complaints kept for a test instead of being said.
    #[cfg(test)]
    pub(crate) fn kept() -> Self {
        Self { command: "test", quiet: true, said: Vec::new() }
    }

    /// Says what went wrong and counts it.
    pub(crate) fn add(&mut self, error: &anyhow::Error) {
        let text = sentence(error);
        if !self.quiet {
            eprintln!("onggi: {}: {text}", self.command);
        }
        self.said.push(text);
    }

    /// Takes a result apart: an error is said and counted.
    pub(crate) fn note<T>(&mut self, result: anyhow::Result<T>) -> Option<T> {
        result.inspect_err(|error| self.add(error)).ok()
    }

    /// How many there were.
    pub(crate) fn count(&self) -> usize {
        self.said.len()
    }

    pub(crate) fn any(&self) -> bool {
        !self.said.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn said(&self) -> &[String] {
        &self.said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_no_numbers() {
        let result: onggi_vfs::Result<()> = Err(Errno::NOENT.into());
        assert_eq!(format!("{:#}", result.at("x").unwrap_err()), "x: No such file or directory");
        let source = std::io::Error::from_raw_os_error(2);
        let error =
            anyhow::Error::from(source).context("x: No such file or directory (os error 2)").context("y");
        assert_eq!(sentence(&error), "y: x: No such file or directory");
        let detail = Error::with_detail(Errno::IO, std::fmt::Error);
        assert!(reason(&detail).starts_with("Input/output error: "));
    }
}

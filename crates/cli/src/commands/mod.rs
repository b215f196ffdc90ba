//! The commands, one file each. File commands work on open volumes and write what they have to say to
//! `out`, so that they are tested on the model.

pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod cp;
pub(crate) mod documents;
pub(crate) mod find;
pub(crate) mod info;
pub(crate) mod ln;
pub(crate) mod ls;
pub(crate) mod mkdir;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod mv;
pub(crate) mod rm;
pub(crate) mod stat;
pub(crate) mod transfer;
pub(crate) mod tree;
#[cfg(test)]
mod try_out;
pub(crate) mod umount;

use std::io::Write;

use crate::images::Images;
use crate::report::Complaints;

/// What a file command works with.
pub(crate) struct Desk<'a> {
    /// The volumes.
    pub(crate) images: &'a mut Images,
    /// Where results go.
    pub(crate) out: &'a mut dyn Write,
    /// Where results go is a terminal.
    pub(crate) terminal: bool,
    /// What went wrong without ending the command.
    pub(crate) complaints: &'a mut Complaints,
}

impl Desk<'_> {
    /// Writes a value as JSON, readably on a terminal.
    pub(crate) fn json(&mut self, value: &impl serde::Serialize) -> anyhow::Result<()> {
        write_json(self.out, self.terminal, value)
    }
}

/// Writes a value as JSON and a newline.
pub(crate) fn write_json(
    out: &mut dyn Write,
    terminal: bool,
    value: &impl serde::Serialize,
) -> anyhow::Result<()> {
    if terminal {
        serde_json::to_writer_pretty(&mut *out, value)?;
    } else {
        serde_json::to_writer(&mut *out, value)?;
    }
    writeln!(out)?;
    Ok(())
}

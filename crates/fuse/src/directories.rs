//! Reading directories: READDIR and READDIRPLUS.

use onggi_vfs::{DirEntry, Ino, Result};

use crate::answer::Answer;
use crate::attributes::type_bits;
use crate::request::Request;
use crate::server::Server;
use crate::wire::{Dirent, EntryOut, ReadIn};

/// Bytes that a short name's entry takes, for guessing how many to ask the engine for.
const TYPICAL_ENTRY: usize = 40;
/// Most entries asked for at once.
const BATCH_MAX: usize = 4096;

/// Bytes that an entry with a name of `len` bytes takes.
fn entry_size(plus: bool, len: usize) -> usize {
    let fixed = size_of::<Dirent>() + if plus { size_of::<EntryOut>() } else { 0 };
    (fixed + len).next_multiple_of(8)
}

impl Server {
    /// Fills one READDIR or READDIRPLUS answer. With `plus` each entry but `.` and `..` counts as looked
    /// up.
    pub(crate) fn readdir(
        &self,
        dir: Ino,
        plus: bool,
        request: &mut Request<'_>,
        answer: &mut Answer,
    ) -> Result<Vec<Ino>> {
        let input: ReadIn = request.take()?;
        let size = input.size as usize;
        answer.room(size)?;
        let per_entry = TYPICAL_ENTRY + if plus { size_of::<EntryOut>() } else { 0 };
        let entries = self.fs.readdir(dir, input.offset, (size / per_entry).clamp(1, BATCH_MAX))?;
        let mut named = Vec::new();
        for entry in &entries {
            if answer.payload_len() + entry_size(plus, entry.name.len()) > size {
                break;
            }
            if plus {
                let out = self.entry_of(entry);
                if out.nodeid != 0 {
                    named.push(entry.ino);
                }
                answer.put(&out)?;
            }
            put_dirent(entry, answer)?;
        }
        Ok(named)
    }

    /// What READDIRPLUS says of an entry's inode: nothing (node id 0) for `.`, `..` and an inode that
    /// cannot be read, whose name is listed all the same.
    fn entry_of(&self, entry: &DirEntry) -> EntryOut {
        if entry.name == b"." || entry.name == b".." {
            return EntryOut::default();
        }
        let known = self
            .fs
            .getattr(entry.ino)
            .and_then(|attr| self.nodes.remember(&*self.fs, &attr).map(|()| self.entry_out(&attr)));
        known.unwrap_or_default()
    }
}

fn put_dirent(entry: &DirEntry, answer: &mut Answer) -> Result<()> {
    let start = answer.payload_len();
    let namelen = u32::try_from(entry.name.len()).expect("names have at most 255 bytes");
    let kind = type_bits(entry.kind) >> 12;
    answer.put(&Dirent { ino: entry.ino.0, off: entry.next, namelen, kind })?;
    answer.put_bytes(&entry.name)?;
    let used = answer.payload_len() - start;
    answer.put_bytes(&[0; 8][..used.next_multiple_of(8) - used])
}

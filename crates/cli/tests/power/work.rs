//! Random work in one directory of a mount, until its server dies.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use onggi_model::{Random, pattern};
use rustix::fs::OFlags;

use crate::diary::{Diary, Id};

const LONGEST: u64 = 48 << 10;
const NAMES: u64 = 12;

/// What the workers and their killer share.
#[derive(Default)]
pub(crate) struct Shared {
    /// Operations that came back.
    pub(crate) done: AtomicU64,
    /// Set before the server is killed: from then on failures are expected.
    pub(crate) killed: AtomicBool,
    /// Workers that have ended.
    pub(crate) ended: AtomicU64,
}

/// Works in `dir` until the server is killed; gives the directory's past.
pub(crate) fn work(dir: &Path, seed: u64, shared: &Shared) -> Result<Diary, String> {
    let mut worker =
        Worker { dir: dir.to_owned(), diary: Diary::new(), random: Random::new(seed), fill: seed << 20 };
    let result = loop {
        match worker.operation() {
            Ok(()) => {
                shared.done.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) if shared.killed.load(Ordering::SeqCst) => break Ok(()),
            Err(error) => break Err(format!("{}: {error}", dir.display())),
        }
    };
    shared.ended.fetch_add(1, Ordering::Relaxed);
    result.map(|()| worker.diary)
}

struct Worker {
    dir: PathBuf,
    diary: Diary,
    random: Random,
    /// Numbers each write.
    fill: u64,
}

impl Worker {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A name that may be in use or not.
    fn any_name(&mut self) -> String {
        format!("n{}", self.random.below(NAMES))
    }

    /// A name in use, of a file or of a directory.
    fn used(&mut self, is_dir: bool) -> Option<(String, Id)> {
        let of_kind = |(_, id): &(&String, &Id)| self.diary.things[**id].is_dir == is_dir;
        let names: Vec<_> = self.diary.names().iter().filter(of_kind).collect();
        if names.is_empty() {
            return None;
        }
        let (name, id) = names[self.random.below(names.len() as u64) as usize];
        Some((name.clone(), *id))
    }

    fn operation(&mut self) -> io::Result<()> {
        match self.random.below(100) {
            0..12 => self.create(),
            12..40 => self.write(),
            40..45 => self.truncate(),
            45..55 => self.replace(),
            55..62 => self.rename(),
            62..67 => self.link(),
            67..73 => self.remove(),
            73..77 => self.directory(),
            77..87 => self.sync_file(),
            87..92 => self.sync_directory(),
            92..94 => rustix::fs::syncfs(File::open(&self.dir)?).map_err(io::Error::from),
            _ => self.read(),
        }
    }

    fn make(&mut self, name: &str) -> io::Result<(File, Id)> {
        let id = self.diary.add_thing(false);
        self.diary.change_names(|names| {
            names.insert(name.to_owned(), id);
        });
        Ok((File::create_new(self.path(name))?, id))
    }

    fn create(&mut self) -> io::Result<()> {
        let name = self.any_name();
        if self.diary.names().contains_key(&name) {
            return self.write();
        }
        let (file, id) = self.make(&name)?;
        if self.random.chance(50) { self.write_into(&file, id, 0) } else { Ok(()) }
    }

    fn write_into(&mut self, file: &File, id: Id, offset: u64) -> io::Result<()> {
        let len = match self.random.below(4) {
            0 => 1 + self.random.below(600),
            1 => 4096,
            _ => 1 + self.random.below(16 << 10),
        };
        self.fill += 1;
        let data = pattern(self.fill, offset, len.min(LONGEST - offset) as usize);
        let (from, to) = (offset as usize, offset as usize + data.len());
        self.diary.change_contents(id, |bytes| {
            bytes.resize(bytes.len().max(to), 0);
            bytes[from..to].copy_from_slice(&data);
        });
        file.write_all_at(&data, offset)
    }

    fn write(&mut self) -> io::Result<()> {
        let Some((name, id)) = self.used(false) else { return Ok(()) };
        let synchronous = self.random.chance(15);
        let mut options = OpenOptions::new();
        options.write(true);
        if synchronous {
            options.custom_flags(OFlags::SYNC.bits() as i32);
        }
        let file = options.open(self.path(&name))?;
        let end = self.diary.things[id].latest().len() as u64;
        let offset = match self.random.below(3) {
            0 => end,
            1 => self.random.below(LONGEST / 4096) * 4096,
            _ => self.random.below(end + 1),
        };
        self.write_into(&file, id, offset.min(LONGEST - 1))?;
        if synchronous {
            self.diary.contents_promised(id, true);
        }
        Ok(())
    }

    fn truncate(&mut self) -> io::Result<()> {
        let Some((name, id)) = self.used(false) else { return Ok(()) };
        let size = self.random.below(LONGEST);
        self.diary.change_contents(id, |bytes| bytes.resize(size as usize, 0));
        OpenOptions::new().write(true).open(self.path(&name))?.set_len(size)
    }

    /// As programs save a file: a new one, synced, takes the old one's name.
    fn replace(&mut self) -> io::Result<()> {
        let Some((name, _)) = self.used(false) else { return Ok(()) };
        let (file, id) = self.make("new")?;
        self.write_into(&file, id, 0)?;
        if self.random.chance(80) {
            file.sync_all()?;
            self.diary.contents_promised(id, true);
        }
        self.move_name("new", &name)?;
        if self.random.chance(40) { self.sync_directory() } else { Ok(()) }
    }

    fn move_name(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.diary.change_names(|names| {
            if let Some(id) = names.remove(from) {
                names.insert(to.to_owned(), id);
            }
        });
        fs::rename(self.path(from), self.path(to))
    }

    fn rename(&mut self) -> io::Result<()> {
        let Some((from, id)) = self.used(false) else { return Ok(()) };
        let to = self.any_name();
        match self.diary.names().get(&to) {
            // Of two names of one file rename takes neither away.
            Some(&other) if other == id || self.diary.things[other].is_dir => Ok(()),
            _ => self.move_name(&from, &to),
        }
    }

    fn link(&mut self) -> io::Result<()> {
        let Some((from, id)) = self.used(false) else { return Ok(()) };
        let to = self.any_name();
        if self.diary.names().contains_key(&to) {
            return Ok(());
        }
        self.diary.change_names(|names| {
            names.insert(to.clone(), id);
        });
        fs::hard_link(self.path(&from), self.path(&to))
    }

    fn remove(&mut self) -> io::Result<()> {
        let Some((name, _)) = self.used(false) else { return Ok(()) };
        self.diary.change_names(|names| {
            names.remove(&name);
        });
        fs::remove_file(self.path(&name))
    }

    /// Makes a directory, or removes one.
    fn directory(&mut self) -> io::Result<()> {
        if let Some((name, _)) = self.used(true) {
            self.diary.change_names(|names| {
                names.remove(&name);
            });
            return fs::remove_dir(self.path(&name));
        }
        let name = self.any_name();
        if self.diary.names().contains_key(&name) {
            return Ok(());
        }
        let id = self.diary.add_thing(true);
        self.diary.change_names(|names| {
            names.insert(name.clone(), id);
        });
        fs::create_dir(self.path(&name))
    }

    fn sync_file(&mut self) -> io::Result<()> {
        let Some((name, id)) = self.used(false) else { return Ok(()) };
        let file = File::open(self.path(&name))?;
        let whole = self.random.chance(60);
        if whole {
            file.sync_all()?;
        } else {
            file.sync_data()?;
        }
        self.diary.contents_promised(id, whole);
        Ok(())
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()?;
        self.diary.names_promised();
        Ok(())
    }

    fn read(&mut self) -> io::Result<()> {
        let Some((name, id)) = self.used(false) else { return Ok(()) };
        let got = fs::read(self.path(&name))?;
        if got == self.diary.things[id].latest() {
            return Ok(());
        }
        Err(io::Error::other(format!("{name} reads other than it was written")))
    }
}

//! What follows `-o`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{anyhow, bail};
use onggi_ext4::{Atime, DataMode};

use crate::quantity::parse_size;

/// Words of fstab that are for mount(8) and others, not for a file system.
const IGNORED: [&str; 14] = [
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "_netdev",
    "async",
    "norelatime",
    "nostrictatime",
    "diratime",
];

/// All that can be chosen for a mount.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) engine: onggi_ext4::MountOptions,
    pub(crate) fuse: onggi_fuse::MountOptions,
    pub(crate) power_cut: Option<u64>,
    pub(crate) log: Option<PathBuf>,
}

impl Options {
    /// Reads words as they stand between the commas.
    pub(crate) fn parse<'w>(words: impl IntoIterator<Item = &'w str>) -> anyhow::Result<Self> {
        let mut options = Self {
            engine: onggi_ext4::MountOptions::default(),
            fuse: onggi_fuse::MountOptions::default(),
            power_cut: None,
            log: None,
        };
        for word in words {
            options.word(word)?;
        }
        Ok(options)
    }

    fn word(&mut self, word: &str) -> anyhow::Result<()> {
        match word.split_once('=') {
            Some((key, value)) => self.pair(word, key, value),
            None => self.flag(word),
        }
    }

    fn flag(&mut self, word: &str) -> anyhow::Result<()> {
        match word {
            "ro" => self.set_read_only(true),
            "rw" => self.set_read_only(false),
            "noatime" => self.engine.atime = Atime::Noatime,
            "relatime" | "atime" => self.engine.atime = Atime::Relatime,
            "strictatime" => self.engine.atime = Atime::Strict,
            "allow_other" => self.fuse.allow_other = Some(true),
            "dev" => self.fuse.dev = true,
            "nodev" => self.fuse.dev = false,
            "suid" => self.fuse.suid = true,
            "nosuid" => self.fuse.suid = false,
            "exec" => self.fuse.noexec = false,
            "noexec" => self.fuse.noexec = true,
            "sync" => self.fuse.sync = true,
            "" => {}
            word if IGNORED.contains(&word) || word.starts_with("x-") => {}
            word => bail!("unknown mount option {word:?}"),
        }
        Ok(())
    }

    fn pair(&mut self, word: &str, key: &str, value: &str) -> anyhow::Result<()> {
        let bad = || anyhow!("mount option {word:?}: bad value");
        match key {
            "data" => {
                self.engine.data = match value {
                    "ordered" => DataMode::Ordered,
                    "journal" => DataMode::Journal,
                    "writeback" => DataMode::Writeback,
                    _ => return Err(bad()),
                }
            }
            "commit" => {
                let seconds = value.parse().map_err(|_| bad())?;
                // As the kernel has it, 0 stands for the default.
                if seconds > 0 {
                    self.engine.commit_interval = Duration::from_secs(seconds);
                }
            }
            "cache" => self.engine.cache_bytes = parse_size(value).map_err(|why| anyhow!("cache=: {why}"))?,
            "threads" => {
                self.fuse.threads =
                    value.parse().ok().filter(|threads| (1..=256).contains(threads)).ok_or_else(bad)?;
            }
            "power-cut" => self.power_cut = Some(value.parse().map_err(|_| bad())?),
            "log" => self.log = Some(PathBuf::from(value)),
            "subtype" | "fsname" | "comment" => {}
            key if key.starts_with("x-") => {}
            _ => bail!("unknown mount option {word:?}"),
        }
        Ok(())
    }

    pub(crate) fn set_read_only(&mut self, read_only: bool) {
        self.engine.read_only = read_only;
        self.fuse.read_only = read_only;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> anyhow::Result<Options> {
        Options::parse(words.split(','))
    }

    #[test]
    fn options_are_understood() {
        let options =
            parse("ro,data=journal,cache=64M,noatime,allow_other,threads=3,commit=9,power-cut=7").unwrap();
        assert!(options.engine.read_only && options.fuse.read_only);
        assert_eq!(options.engine.data, DataMode::Journal);
        assert_eq!(options.engine.cache_bytes, 64 << 20);
        assert_eq!(options.engine.atime, Atime::Noatime);
        assert_eq!(options.engine.commit_interval, Duration::from_secs(9));
        assert_eq!((options.fuse.allow_other, options.fuse.threads), (Some(true), 3));
        assert_eq!(options.power_cut, Some(7));
        let options =
            parse("defaults,nofail,_netdev,x-systemd.automount,x-a=b,rw,dev,suid,noexec,sync").unwrap();
        assert!(!options.engine.read_only && options.fuse.dev && options.fuse.suid);
        assert!(options.fuse.noexec && options.fuse.sync);
    }

    #[test]
    fn what_is_unknown_is_named() {
        for word in ["data=fast", "frobnicate", "threads=0", "threads=x", "cache=", "power-cut=", "size=3"] {
            let error = parse(word).unwrap_err().to_string();
            assert!(error.contains(word.split('=').next().unwrap()), "{error}");
        }
    }
}

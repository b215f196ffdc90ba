//! Random operations: a few names, so that they meet; odd sizes, borders of blocks and of formats.

use std::collections::VecDeque;

use onggi_vfs::{FallocateMode, RenameMode, SetAttr, Timestamp, Whence, XattrMode};

use crate::ops::{Made, Op, Place, Step};
use crate::{Limits, Random};

/// What a generator makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The limits that hostile numbers play around.
    pub limits: Limits,
    /// Files stay below about this many bytes, hostile offsets apart.
    pub file_size: u64,
    /// Bytes of a write at most.
    pub write_size: u64,
    /// Bad names, offsets near the format's end, values that do not fit.
    pub hostile: bool,
    /// Devices, pipes and sockets.
    pub special: bool,
    /// Retains of inodes that are gone (`ESTALE`).
    pub revive: bool,
    /// Sets creation times.
    pub crtime: bool,
    /// fsync, fdatasync or sync this often in a hundred.
    pub durable_percent: u64,
    /// Only what changes something: no reads.
    pub changes_only: bool,
}

impl Profile {
    /// Everything.
    #[must_use]
    pub fn full(limits: Limits) -> Self {
        Self {
            limits,
            file_size: 1 << 20,
            write_size: 100_000,
            hostile: true,
            special: true,
            revive: true,
            crtime: true,
            durable_percent: 3,
            changes_only: false,
        }
    }

    /// Small changes with many calls for durability, for crash tests.
    #[must_use]
    pub fn crash(limits: Limits) -> Self {
        Self {
            file_size: 128 << 10,
            write_size: 24 << 10,
            hostile: false,
            revive: false,
            durable_percent: 15,
            changes_only: true,
            ..Self::full(limits)
        }
    }
}

/// Open files that a run has at once.
const SLOTS: u64 = 5;

/// An endless sequence of steps that its seed and profile fix.
#[derive(Clone, Debug)]
pub struct Generator {
    random: Random,
    profile: Profile,
    time: u64,
    /// Places where something was made lately, likely to hold it still.
    recent: VecDeque<Place>,
}

const RECENT: usize = 10;

impl Generator {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(seed: u64, profile: Profile) -> Self {
        Self { random: Random::new(seed), profile, time: 0, recent: VecDeque::new() }
    }

    fn hostile(&mut self, per_thousand: u64) -> bool {
        self.profile.hostile && self.random.below(1000) < per_thousand
    }

    fn slot(&mut self) -> u8 {
        self.random.below(SLOTS) as u8
    }

    fn directory_name(&mut self) -> Vec<u8> {
        format!("d{}", self.random.below(2)).into_bytes()
    }

    fn name(&mut self) -> Vec<u8> {
        if self.hostile(30) {
            return match self.random.below(7) {
                0 => Vec::new(),
                1 => b".".to_vec(),
                2 => b"..".to_vec(),
                3 => vec![b'x'; 256],
                4 => vec![b'y'; 300],
                5 => vec![b'z'; 255],
                _ => b"\xff\x01 \xc3\x28%".to_vec(),
            };
        }
        match self.random.below(10) {
            0..=2 => self.directory_name(),
            n => self.file_name(n),
        }
    }

    fn file_name(&mut self, number: u64) -> Vec<u8> {
        match number {
            0 => vec![b'l'; 100 + self.random.below(2) as usize],
            n => format!("f{n}").into_bytes(),
        }
    }

    /// A place with a last name.
    fn name_place(&mut self) -> Place {
        let slot = self.random.chance(4).then(|| self.slot());
        let depth = *self.random.pick(&[0, 0, 0, 0, 1, 1, 1, 2, 2, 3]);
        let mut names: Vec<_> = (0..depth)
            .map(|_| if self.random.chance(95) { self.directory_name() } else { self.name() })
            .collect();
        names.push(self.name());
        Place { slot, names }
    }

    /// Any place, open files included.
    fn place(&mut self) -> Place {
        if self.random.chance(40)
            && let Some(place) = self.recent.get(self.random.below(RECENT as u64) as usize)
        {
            return place.clone();
        }
        match self.random.below(100) {
            0..25 => Place { slot: Some(self.slot()), names: Vec::new() },
            25 => Place { slot: None, names: Vec::new() },
            _ => self.name_place(),
        }
    }

    /// A place that is likely to be a file.
    fn file_place(&mut self) -> Place {
        if self.random.chance(80) {
            return self.place();
        }
        let mut place = self.name_place();
        let number = self.random.below(6);
        place.names.pop();
        place.names.push(self.file_name(number));
        place
    }

    fn directory_place(&mut self) -> Place {
        let mut place = self.name_place();
        place.names.pop();
        place
    }

    fn perm(&mut self) -> u16 {
        *self.random.pick(&[0o644, 0o755, 0o600, 0o777, 0o2775, 0o1777, 0o4755, 0o6711, 0])
    }

    fn owner(&mut self) -> u32 {
        *self.random.pick(&[0, 0, 1000, 1001, 70_000, u32::MAX - 1])
    }

    fn offset(&mut self) -> u64 {
        let block = u64::from(self.profile.limits.block_size);
        let max = self.profile.limits.max_file_size;
        if self.hostile(25) {
            let near =
                *self.random.pick(&[max, max - block, block << 32, 1 << 32, block << 31, i64::MAX as u64]);
            let shift = self.random.below(4 * block);
            return if self.random.chance(50) {
                near.saturating_sub(shift)
            } else {
                near.saturating_add(shift)
            };
        }
        let range = if self.random.chance(70) { self.profile.file_size / 8 } else { self.profile.file_size };
        let at = self.random.below(range.max(1));
        match self.random.below(4) {
            0 => at,
            1 => at / block * block,
            2 => (at / block * block).saturating_sub(1),
            _ => at / block * block + 1,
        }
    }

    fn len(&mut self) -> u64 {
        let block = u64::from(self.profile.limits.block_size);
        let len = match self.random.below(10) {
            0 => self.random.below(3),
            1..=4 => self.random.below(3 * block),
            5..=6 => block * (1 + self.random.below(4)),
            7 => block * (1 + self.random.below(4)) - 1,
            _ => self.random.below(self.profile.write_size),
        };
        len.min(self.profile.write_size)
    }

    fn fill(&mut self) -> u64 {
        self.random.below(1 << 32)
    }

    fn time(&mut self) -> Timestamp {
        let sec = self.random.below(1 << 34) as i64 - (1 << 31);
        Timestamp { sec, nsec: self.random.below(1_000_000_000) as u32 }
    }

    /// Something that goes with a name, mostly: a directory where it begins with `d`.
    fn made(&mut self, at: &Place) -> Made {
        if self.random.chance(60) {
            let directory = at.names.last().is_some_and(|name| name.starts_with(b"d"));
            return if directory { Made::Directory } else { Made::Regular };
        }
        match self.random.below(20) {
            0..=9 => Made::Regular,
            10..=15 => Made::Directory,
            16..=17 => self.symlink(),
            _ if !self.profile.special => Made::Regular,
            _ => match self.random.below(4) {
                0 => Made::BlockDevice(self.random.below(4096) as u32, self.random.below(1 << 20) as u32),
                1 => Made::CharDevice(self.random.below(256) as u32, self.random.below(256) as u32),
                2 => Made::Fifo,
                _ => Made::Socket,
            },
        }
    }

    fn symlink(&mut self) -> Made {
        let len = match self.random.below(10) {
            0 => 59,
            1 => 60,
            2 => 61,
            3 => self.random.below(self.profile.limits.symlink_max as u64) + 1,
            4 if self.profile.hostile => {
                *self.random.pick(&[0, self.profile.limits.symlink_max as u64, 4095, 4096, 5000])
            }
            _ => 1 + self.random.below(30),
        };
        let letter = b'a' + self.random.below(26) as u8;
        Made::Symlink(vec![letter; len as usize])
    }

    fn changes(&mut self) -> SetAttr {
        let mut changes = SetAttr::default();
        if self.random.chance(55) {
            changes.size = Some(if self.random.chance(15) { 0 } else { self.offset() });
        }
        if self.random.chance(25) {
            changes.perm = Some(self.perm());
        }
        if self.random.chance(15) {
            changes.uid = Some(self.owner());
        }
        if self.random.chance(15) {
            changes.gid = Some(self.owner());
        }
        if self.random.chance(15) {
            changes.mtime = Some(self.time());
        }
        if self.random.chance(15) {
            changes.atime = Some(self.time());
        }
        if self.profile.crtime && self.random.chance(5) {
            changes.crtime = Some(self.time());
        }
        changes
    }

    fn xattr_name(&mut self) -> Vec<u8> {
        if self.hostile(60) {
            let odd: [&[u8]; 6] = [b"", b"user.", b"bogus.name", b"plain", b"user", b"system.onggi"];
            return match self.random.below(8) {
                6 => [b"user.", vec![b'n'; 250].as_slice()].concat(),
                7 => [b"user.", vec![b'n'; 251].as_slice()].concat(),
                n => odd[n as usize].to_vec(),
            };
        }
        let names: [&[u8]; 5] = [
            b"user.a",
            b"user.second",
            b"trusted.onggi",
            b"security.onggi",
            b"user.a-rather-long-name.of-words",
        ];
        self.random.pick(&names).to_vec()
    }

    fn setxattr(&mut self) -> Op {
        let limits = self.profile.limits;
        let len = match self.random.below(6) {
            0 => 0,
            1..=3 => self.random.below(40),
            4 if self.hostile(200) => u64::from(limits.block_size),
            _ => self.random.below(u64::from(limits.block_size) / 8),
        };
        let mode =
            *self.random.pick(&[XattrMode::Set, XattrMode::Set, XattrMode::Create, XattrMode::Replace]);
        // A few fills, so that the same value is set again at times.
        let fill = self.random.below(3);
        Op::Setxattr { at: self.file_place(), name: self.xattr_name(), len: len as usize, fill, mode }
    }

    fn fallocate(&mut self) -> Op {
        let mode = *self.random.pick(&[
            FallocateMode::Allocate { keep_size: false },
            FallocateMode::Allocate { keep_size: true },
            FallocateMode::PunchHole,
            FallocateMode::PunchHole,
            FallocateMode::ZeroRange { keep_size: false },
            FallocateMode::ZeroRange { keep_size: true },
        ]);
        let (mut offset, mut len) = (self.offset(), self.len());
        let max = self.profile.limits.max_file_size;
        if mode == FallocateMode::PunchHole && self.random.chance(20) {
            len = self.offset();
        }
        if self.hostile(20) {
            len = *self.random.pick(&[max, max + 1, u64::MAX, i64::MAX as u64]);
            offset = offset.max(1);
        }
        // What is to be allocated fits a small volume, or is refused for its end.
        let allocates = mode != FallocateMode::PunchHole;
        if allocates && offset.checked_add(len).is_some_and(|end| end <= max) && offset > 1 << 40 {
            offset %= self.profile.file_size;
        }
        Op::Fallocate { at: self.file_place(), offset, len, mode }
    }

    fn durable(&mut self) -> Op {
        match self.random.below(10) {
            0..=1 => Op::Sync,
            2..=3 => Op::Fsync { at: self.file_place(), datasync: true },
            4 => Op::Fsync { at: self.directory_place(), datasync: false },
            5 => Op::Fsync { at: Place { slot: Some(self.slot()), names: Vec::new() }, datasync: false },
            n => {
                let lately = self.recent.get((n as usize - 6) * 2).cloned();
                Op::Fsync { at: lately.unwrap_or_else(|| self.file_place()), datasync: false }
            }
        }
    }

    fn look(&mut self) -> Op {
        match self.random.below(9) {
            0..=2 => Op::Read { at: self.file_place(), offset: self.offset(), len: self.len() as usize },
            3 => Op::Readdir { at: self.directory_place(), batch: 1 + self.random.below(8) as usize },
            4 => {
                let whence = *self.random.pick(&[Whence::Data, Whence::Hole]);
                Op::Seek { at: self.file_place(), offset: self.offset(), whence }
            }
            5 => Op::Readlink(self.place()),
            6 => Op::Getxattr { at: self.place(), name: self.xattr_name() },
            7 => Op::Listxattr(self.place()),
            _ => Op::Stat(self.place()),
        }
    }

    fn change(&mut self) -> Op {
        match self.random.below(100) {
            0..16 => {
                let at = self.name_place();
                Op::Create { made: self.made(&at), at, perm: self.perm() }
            }
            16..18 => Op::Tmpfile { dir: self.directory_place(), perm: self.perm(), slot: self.slot() },
            18..23 => Op::Link { from: self.place(), to: self.name_place() },
            23..30 => Op::Unlink(self.name_place()),
            30..34 => Op::Rmdir(self.name_place()),
            34..44 => {
                let modes =
                    [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                Op::Rename { from: self.name_place(), to: self.name_place(), mode: *self.random.pick(&modes) }
            }
            44..50 => Op::Open { at: self.file_place(), slot: self.slot() },
            50..53 => Op::Close(self.slot()),
            53 if self.profile.revive => Op::Revive(self.slot()),
            53..71 => Op::Write {
                at: self.file_place(),
                offset: self.offset(),
                len: self.len() as usize,
                fill: self.fill(),
            },
            71..76 => Op::Append { at: self.file_place(), len: self.len() as usize, fill: self.fill() },
            76..85 => Op::Setattr { at: self.file_place(), changes: self.changes() },
            85..92 => self.fallocate(),
            92..97 => self.setxattr(),
            _ => Op::Removexattr { at: self.place(), name: self.xattr_name() },
        }
    }
}

impl Iterator for Generator {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        self.time += 1;
        let op = if self.random.chance(self.profile.durable_percent) {
            self.durable()
        } else if !self.profile.changes_only && self.random.chance(25) {
            self.look()
        } else {
            self.change()
        };
        if let Op::Create { at, .. } | Op::Rename { to: at, .. } | Op::Link { to: at, .. } = &op {
            self.recent.push_front(at.clone());
            self.recent.truncate(RECENT);
        }
        Some(Step { time: self.time, uid: self.owner(), gid: self.owner(), op })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_survives_its_text() {
        let generator = Generator::new(7, Profile::full(Limits::ext4(4096)));
        for step in generator.take(20_000) {
            let line = step.to_string();
            assert_eq!(line.parse::<Step>(), Ok(step), "{line}");
        }
    }

    #[test]
    fn a_seed_fixes_the_sequence() {
        let profile = Profile::full(Limits::ext4(1024));
        let some = |seed| Generator::new(seed, profile).take(100).collect::<Vec<_>>();
        assert_eq!(some(1), some(1));
        assert_ne!(some(1), some(2));
    }

    #[test]
    fn nonsense_is_no_step() {
        for line in ["", "1", "1 0:0", "1 0:0 dance /a", "1 0:0 write /a 1", "x 0:0 sync", "1 0:0 stat #x"] {
            assert!(line.parse::<Step>().is_err(), "{line:?}");
        }
    }
}

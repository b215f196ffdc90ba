//! The tree as a whole: ways to the root, names and link counts.

use onggi_disk_format::FileBlock;
use onggi_disk_format::ext4::{FileType, RoCompat, superblock};

use super::Analysis;
use super::inodes::is_special;
use crate::Pass;
use crate::fix::Fix;
use crate::report::{Code, Place};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Unknown,
    Walking,
    Done,
}

impl Analysis<'_, '_> {
    /// Checks that every directory leads to the root and every inode has as many names as it counts.
    pub(super) fn check_links(&mut self) {
        self.check_parents();
        self.check_ways();
        self.check_counts();
        self.progress(Pass::Links, 1, 1);
    }

    /// `..` names the directory that names this one.
    fn check_parents(&mut self) {
        let root = superblock::ROOT_INODE;
        for index in 0..self.directories.len() {
            let directory = &self.directories[index];
            let (dir, seed) = (directory.nr, directory.seed);
            let Some((dotdot, place, offset)) = directory.dotdot else { continue };
            let Some(record) = self.find(dir) else { continue };
            let parent = if dir == root { root } else { self.records[record].parent };
            if parent.0 != 0 && dotdot != parent {
                let at = Place::Directory { dir, block: FileBlock(0) };
                let kind = self.stored_dir_kind();
                let fix = Fix::SetEntry { place, seed, offset, nr: parent, kind };
                let what = format!("'..' names inode {dotdot}, but inode {parent} holds this directory");
                self.problem(Code::DotEntries, at, what, Some(fix));
            }
        }
        if self.find(root).is_none_or(|index| self.records[index].kind != FileType::Directory) {
            self.problem(Code::Inode, Place::Inode(root), "there is no root directory", None);
        }
    }

    fn stored_dir_kind(&self) -> u8 {
        let filetype = onggi_disk_format::ext4::Incompat::FILETYPE;
        if self.volume.sb.incompat().contains(filetype) { FileType::Directory as u8 } else { 0 }
    }

    /// Follows every directory's parents up to the root.
    fn check_ways(&mut self) {
        let mut ways = vec![Way::Unknown; self.records.len()];
        if let Some(root) = self.find(superblock::ROOT_INODE) {
            ways[root] = Way::Done;
        }
        for start in 0..self.records.len() {
            if self.records[start].kind != FileType::Directory || self.records[start].links == 0 {
                continue;
            }
            let mut path = Vec::new();
            let mut at = start;
            while ways[at] == Way::Unknown {
                ways[at] = Way::Walking;
                path.push(at);
                match self.find(self.records[at].parent) {
                    Some(parent) => at = parent,
                    // The top of a lost tree is reported with the other nameless inodes.
                    None => break,
                }
            }
            if ways[at] == Way::Walking && self.records[at].parent.0 != 0 {
                let place = Place::Inode(self.records[at].nr);
                self.problem(Code::DirectoryLoop, place, "a directory that lies in itself", None);
            }
            path.into_iter().for_each(|index| ways[index] = Way::Done);
        }
    }

    fn check_counts(&mut self) {
        let sb = &self.volume.sb;
        let uncounted = sb.ro_compat().contains(RoCompat::DIR_NLINK);
        // Linux never counts on from 1, but e2fsck does not take it for fewer names than this.
        let most = 65_000;
        for index in 0..self.records.len() {
            let record = self.records[index].clone();
            let nr = record.nr;
            let reserved = nr < sb.first_inode() && nr != superblock::ROOT_INODE;
            if reserved || record.value.is_some() || is_special(sb, nr) {
                continue;
            }
            let place = Place::Inode(nr);
            let is_dir = record.kind == FileType::Directory;
            // A directory names itself.
            let nameless = record.names == 0 || (is_dir && record.parent.0 == 0);
            if nameless && record.links != 0 && nr != superblock::ROOT_INODE {
                let fix = (!record.broken).then_some(Fix::Reconnect(nr));
                self.problem(Code::Disconnected, place, "in use, but no directory names it", fix);
            } else if record.links == 0 && nameless {
                if !self.orphans.contains(&nr) {
                    let what = "in use without a link, and no orphan";
                    self.problem(Code::Unlinked, place, what, Some(Fix::ClearInode(nr)));
                }
            } else if u32::from(record.links) != record.names
                && !(is_dir && record.links == 1 && uncounted && record.names > most)
            {
                let what = format!("counts {} links and has {}", record.links, record.names);
                let links = match u16::try_from(record.names) {
                    Ok(names) if record.names <= most => names,
                    _ => 1,
                };
                self.problem(Code::LinkCount, place, what, Some(Fix::Links(nr, links)));
            }
        }
    }
}

//! The orphan list and the orphan file: inodes whose deletion or truncation may have been cut short.

use onggi_disk_format::InodeNr;
use onggi_disk_format::ext4::{FileType, Inode, RoCompat, inode_seed, orphan};

use super::{Analysis, mapping};
use crate::CheckError;
use crate::fix::Fix;
use crate::report::{Code, Place};

impl Analysis<'_, '_> {
    /// Collects the orphans.
    pub(super) fn collect_orphans(&mut self) -> Result<(), CheckError> {
        self.walk_orphan_list()?;
        self.read_orphan_file()?;
        self.stats.orphans = self.orphans.len() as u32;
        Ok(())
    }

    fn bad_orphans(&mut self, what: String) {
        self.problem(Code::Orphans, Place::Superblock, what, Some(Fix::ClearOrphans));
    }

    fn walk_orphan_list(&mut self) -> Result<(), CheckError> {
        let mut next = self.volume.sb.last_orphan();
        while let Some(nr) = next {
            let Some(inode) = self.orphan(nr)? else { break };
            if !self.orphans.insert(nr) {
                self.bad_orphans(format!("the orphan list comes back to inode {nr}"));
                break;
            }
            next = (inode.dtime != 0).then_some(InodeNr(inode.dtime));
        }
        Ok(())
    }

    fn read_orphan_file(&mut self) -> Result<(), CheckError> {
        let sb = &self.volume.sb;
        let Some(file) = sb.orphan_file() else { return Ok(()) };
        let place = Place::Inode(file);
        let Some(inode) = self.read_inode(file)?.filter(|inode| inode.kind() == FileType::Regular) else {
            self.problem(Code::Orphans, place, "the orphan file is no regular file", None);
            return Ok(());
        };
        let seed = inode_seed(sb.csum_seed(), file, inode.generation);
        let mapping = mapping::map_alone(self.volume, file, &inode)?;
        let mut listed = Vec::new();
        for run in &mapping.runs {
            for ahead in 0..u64::from(run.len) {
                let at = onggi_disk_format::DiskBlock(run.start.0 + ahead);
                let block = self.volume.read(at, 1)?;
                let checksum = sb.has_metadata_csum().then_some((seed, at));
                match orphan::parse(&block, sb.inodes_count(), checksum) {
                    Ok(used) => listed.extend(used.into_iter().map(|(_, nr)| nr)),
                    Err(error) => {
                        self.problem(Code::Orphans, place, error.to_string(), Some(Fix::ClearOrphans));
                    }
                }
            }
        }
        if !listed.is_empty() && !sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT) {
            let what = "the orphan file is in use, the superblock says that it is empty".to_string();
            self.problem(Code::Orphans, place, what, Some(Fix::ClearOrphans));
        }
        for nr in listed {
            if self.orphan(nr)?.is_some() && !self.orphans.insert(nr) {
                self.bad_orphans(format!("inode {nr} is an orphan twice"));
            }
        }
        Ok(())
    }

    /// The inode of an entry of the list, if it may be one.
    fn orphan(&mut self, nr: InodeNr) -> Result<Option<Inode>, CheckError> {
        let inode = if nr < self.volume.sb.first_inode() { None } else { self.read_inode(nr)? };
        let inode = inode.filter(|inode| inode.kind() != FileType::Unknown);
        if inode.is_none() {
            self.bad_orphans(format!("inode {nr} is an orphan, but no file"));
        }
        Ok(inode)
    }

    /// An inode's fields as they are; `None` for one that cannot be read.
    pub(super) fn read_inode(&self, nr: InodeNr) -> Result<Option<Inode>, CheckError> {
        let Some((block, at)) = self.volume.inode_place(&self.groups, nr) else { return Ok(None) };
        let bytes = self.volume.read(block, 1)?;
        Ok(bytes.get(at..).and_then(|bytes| Inode::read(&self.volume.sb, nr, bytes).ok()))
    }
}

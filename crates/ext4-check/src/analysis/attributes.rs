//! Extended attributes and those who share them.

use onggi_disk_format::ext4::xattr::{self, Xattr};
use onggi_disk_format::ext4::{Inode, inode};
use onggi_disk_format::{DiskBlock, InodeNr};

use super::Analysis;
use crate::CheckError;
use crate::claims::Owner;
use crate::fix::Fix;
use crate::report::{Code, Place};

/// An attribute block and its users.
pub(crate) struct AttributeBlock {
    stored: u32,
    found: u32,
    /// Bytes of values in inodes, each rounded up to blocks.
    pub(super) value_bytes: u64,
}

impl Analysis<'_, '_> {
    /// Checks an inode's attributes and returns the 512-byte units they add to `i_blocks`.
    pub(super) fn check_attributes(
        &mut self,
        nr: InodeNr,
        inode: &Inode,
        bytes: &[u8],
    ) -> Result<u64, CheckError> {
        let sb = &self.volume.sb;
        let mut value_bytes = 0;
        if let Some(area) = inode::xattr_area(sb, inode.extra_isize) {
            match xattr::parse_area(sb, &bytes[area]) {
                Ok(xattrs) => value_bytes += self.note_values(&xattrs),
                Err(error) => {
                    let fix = Some(Fix::ClearAttributeArea(nr));
                    self.problem(Code::Attributes, Place::Inode(nr), error.to_string(), fix);
                }
            }
        }
        let mut blocks = 0;
        if inode.file_acl.0 != 0 {
            blocks = 1;
            value_bytes += self.use_block(nr, inode.file_acl)?;
        }
        Ok(blocks * u64::from(sb.block_size() / 512) + value_bytes / 512)
    }

    fn note_values(&mut self, xattrs: &[Xattr]) -> u64 {
        let block_size = u64::from(self.volume.sb.block_size());
        let mut bytes = 0;
        for value in xattrs.iter().filter_map(|xattr| xattr.value_inode) {
            bytes += u64::from(value.size).next_multiple_of(block_size);
            self.value_users.push(value.nr);
        }
        bytes
    }

    /// Counts a user of an attribute block; the first one checks it.
    fn use_block(&mut self, nr: InodeNr, place: DiskBlock) -> Result<u64, CheckError> {
        if let Some(known) = self.attribute_blocks.get_mut(&place) {
            known.found += 1;
            return Ok(known.value_bytes);
        }
        let claimed = self.claim(place, 1, Owner::Attributes(nr), Code::DoubleClaim, Place::Inode(nr));
        if !claimed {
            return Ok(0);
        }
        let block = self.volume.read(place, 1)?;
        let (stored, value_bytes) = match xattr::parse_block(&self.volume.sb, &block, place) {
            Ok(parsed) => (parsed.refcount, self.note_values(&parsed.xattrs)),
            Err(error) => {
                let what = format!("attribute block {place}: {error}");
                self.problem(Code::Attributes, Place::Inode(nr), what, Some(Fix::DropAttributeBlock(nr)));
                (0, 0)
            }
        };
        self.attribute_blocks.insert(place, AttributeBlock { stored, found: 1, value_bytes });
        Ok(value_bytes)
    }

    /// Compares counts of users with the users found.
    pub(super) fn check_attribute_users(&mut self) {
        let wrong: Vec<_> = self
            .attribute_blocks
            .iter()
            .filter(|(_, block)| block.stored != 0 && block.stored != block.found)
            .map(|(&place, block)| (place, block.stored, block.found))
            .collect();
        for (place, stored, found) in wrong {
            let what = format!("an attribute block counts {stored} users and has {found}");
            let fix = Fix::AttributeRefcount(place, found);
            self.problem(Code::AttributeRefcount, Place::Block(place), what, Some(fix));
        }
        for nr in std::mem::take(&mut self.value_users) {
            let value = self.find(nr).and_then(|index| self.records[index].value.as_mut());
            if let Some((found, _)) = value {
                *found += 1;
            } else {
                let what = "an attribute's value should lie here, but this inode holds none";
                self.problem(Code::ValueInode, Place::Inode(nr), what, None);
            }
        }
        let counts = self.records.iter().filter_map(|record| Some((record.nr, record.value?)));
        let wrong: Vec<_> = counts.filter(|(_, (found, stored))| found != stored).collect();
        for (nr, (found, stored)) in wrong {
            let what = format!("a value counts {stored} users and has {found}");
            self.problem(Code::ValueInode, Place::Inode(nr), what, None);
        }
    }
}

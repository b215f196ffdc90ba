//! Which features a volume gets, in mke2fs's spelling.

use onggi_disk_format::ext4::{Compat, Incompat, RoCompat};

use crate::MkfsError;

/// The three feature words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Features that a driver may ignore.
    pub compat: Compat,
    /// Features that a driver must know to read.
    pub incompat: Incompat,
    /// Features that a driver must know to write.
    pub ro_compat: RoCompat,
}

const COMPAT: Compat =
    Compat::HAS_JOURNAL.union(Compat::EXT_ATTR).union(Compat::RESIZE_INODE).union(Compat::DIR_INDEX);
const INCOMPAT: Incompat =
    Incompat::FILETYPE.union(Incompat::EXTENTS).union(Incompat::BIT64).union(Incompat::FLEX_BG);
const RO_COMPAT: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::METADATA_CSUM);

impl Default for Features {
    /// Those of `mke2fs -t ext4` with the configuration that e2fsprogs is packaged with.
    fn default() -> Self {
        Self { compat: COMPAT, incompat: INCOMPAT, ro_compat: RO_COMPAT }
    }
}

/// Names that mke2fs takes besides those it prints.
const ALIASES: [(&str, &str); 4] = [
    ("extents", "extent"),
    ("gdt_csum", "uninit_bg"),
    ("uninit_groups", "uninit_bg"),
    ("metadata_checksum", "metadata_csum"),
];

impl Features {
    /// No feature at all.
    #[must_use]
    pub fn none() -> Self {
        Self { compat: Compat::default(), incompat: Incompat::default(), ro_compat: RoCompat::default() }
    }

    /// Edits the set by a list in the manner of `mke2fs -O`: names separated by commas or blanks, `^` or
    /// `-` clears one, `none` clears all.
    ///
    /// # Errors
    /// A name that no feature has; one that cannot be made.
    pub fn edit(&mut self, list: &str) -> Result<(), MkfsError> {
        for item in list.split([',', ' ', '\t']).filter(|item| !item.is_empty()) {
            let lower = item.to_ascii_lowercase();
            if lower == "none" {
                *self = Self::none();
                continue;
            }
            let (on, name) = match lower.strip_prefix(['^', '-']) {
                Some(name) => (false, name),
                None => (true, lower.strip_prefix('+').unwrap_or(&lower)),
            };
            let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name);
            self.set_by_name(name, on).ok_or_else(|| MkfsError::UnknownFeature(item.to_string()))?;
        }
        // metadata_csum covers what uninit_bg covers.
        if self.ro_compat.contains(RoCompat::METADATA_CSUM) {
            self.ro_compat.remove(RoCompat::GDT_CSUM);
        }
        Ok(())
    }

    fn set_by_name(&mut self, name: &str, on: bool) -> Option<()> {
        if let Some(bit) = Compat::by_name(name) {
            self.compat.set(bit, on);
        } else if let Some(bit) = Incompat::by_name(name) {
            self.incompat.set(bit, on);
        } else {
            self.ro_compat.set(RoCompat::by_name(name)?, on);
        }
        Some(())
    }

    /// Names of the features set.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        [self.compat.names(), self.incompat.names(), self.ro_compat.names()].concat()
    }

    /// Passes when this room can make the set and its members go together.
    ///
    /// # Errors
    /// [`MkfsError::Unsupported`], [`MkfsError::FeatureNeeds`].
    pub fn check(&self) -> Result<(), MkfsError> {
        self.check_supported()?;
        let (compat, incompat, ro) = (self.compat, self.incompat, self.ro_compat);
        let needs = |feature, needs| Err(MkfsError::FeatureNeeds { feature, needs });
        if incompat.contains(Incompat::BIT64) && !incompat.contains(Incompat::EXTENTS) {
            return needs("64bit", "extent");
        }
        if compat.contains(Compat::RESIZE_INODE) && !ro.contains(RoCompat::SPARSE_SUPER) {
            return needs("resize_inode", "sparse_super");
        }
        if compat.contains(Compat::ORPHAN_FILE) && !compat.contains(Compat::HAS_JOURNAL) {
            return needs("orphan_file", "has_journal");
        }
        if incompat.contains(Incompat::CSUM_SEED) && !ro.contains(RoCompat::METADATA_CSUM) {
            return needs("metadata_csum_seed", "metadata_csum");
        }
        Ok(())
    }

    fn check_supported(&self) -> Result<(), MkfsError> {
        let compat = COMPAT | Compat::ORPHAN_FILE;
        let incompat = INCOMPAT | Incompat::CSUM_SEED | Incompat::LARGEDIR;
        let ro_compat = RO_COMPAT | RoCompat::GDT_CSUM;
        let unsupported = Self {
            compat: self.compat.without(compat),
            incompat: self.incompat.without(incompat),
            ro_compat: self.ro_compat.without(ro_compat),
        };
        match unsupported.names().first() {
            None => Ok(()),
            Some(name) => Err(MkfsError::Unsupported(static_name(name))),
        }
    }
}

/// The names of features that exist but cannot be made here.
fn static_name(name: &str) -> &'static str {
    const NAMES: [&str; 31] = [
        "dir_prealloc",
        "imagic_inodes",
        "lazy_bg",
        "exclude_inode",
        "exclude_bitmap",
        "sparse_super2",
        "fast_commit",
        "stable_inodes",
        "compression",
        "needs_recovery",
        "journal_dev",
        "meta_bg",
        "mmp",
        "ea_inode",
        "dirdata",
        "inline_data",
        "encrypt",
        "casefold",
        "btree_dir",
        "snapshot",
        "quota",
        "bigalloc",
        "replica",
        "read-only",
        "project",
        "shared_blocks",
        "verity",
        "orphan_present",
        "uninit_bg",
        "metadata_csum",
        "metadata_csum_seed",
    ];
    NAMES.iter().find(|known| **known == name).copied().unwrap_or("with an unknown bit")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(list: &str) -> Result<Features, MkfsError> {
        let mut features = Features::default();
        features.edit(list)?;
        features.check()?;
        Ok(features)
    }

    #[test]
    fn lists_add_and_clear() {
        let features = edited("^has_journal, Orphan_File,^ORPHAN_FILE  extents").unwrap();
        assert!(!features.compat.intersects(Compat::HAS_JOURNAL | Compat::ORPHAN_FILE));
        assert!(edited("none").unwrap().names().is_empty());
        assert_eq!(edited("none,filetype").unwrap().names(), ["filetype"]);
        assert_eq!(edited("uninit_bg").unwrap(), Features::default());
    }

    #[test]
    fn what_cannot_be_made_is_named() {
        assert_eq!(edited("bigalloc"), Err(MkfsError::Unsupported("bigalloc")));
        assert_eq!(edited("casefold"), Err(MkfsError::Unsupported("casefold")));
        assert_eq!(edited("no_such"), Err(MkfsError::UnknownFeature("no_such".into())));
        let needs = |feature, needs| Err(MkfsError::FeatureNeeds { feature, needs });
        assert_eq!(edited("^extent"), needs("64bit", "extent"));
        assert_eq!(edited("^sparse_super"), needs("resize_inode", "sparse_super"));
        assert_eq!(edited("^has_journal,orphan_file"), needs("orphan_file", "has_journal"));
    }

    #[test]
    fn every_feature_with_a_name_is_makeable_or_named_as_not() {
        let all = Features { compat: Compat::KNOWN, incompat: Incompat::KNOWN, ro_compat: RoCompat::KNOWN };
        for name in all.names() {
            let mut features = Features::none();
            features.set_by_name(&name, true).unwrap();
            if let Err(MkfsError::Unsupported(named)) = features.check_supported() {
                assert_eq!(named, name);
            }
        }
    }
}

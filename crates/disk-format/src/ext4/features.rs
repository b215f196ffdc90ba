//! Feature bits, in mke2fs's spelling.

use crate::flag_set::flag_set;

flag_set! {
    /// Features that a driver may ignore.
    Compat(u32) {
        /// Directory preallocation.
        DIR_PREALLOC = 0x1, "dir_prealloc";
        /// AFS server inodes.
        IMAGIC_INODES = 0x2, "imagic_inodes";
        /// A journal.
        HAS_JOURNAL = 0x4, "has_journal";
        /// Extended attributes.
        EXT_ATTR = 0x8, "ext_attr";
        /// Reserved descriptor blocks and the resize inode.
        RESIZE_INODE = 0x10, "resize_inode";
        /// Hashed directories.
        DIR_INDEX = 0x20, "dir_index";
        /// Lazy block groups.
        LAZY_BG = 0x40, "lazy_bg";
        /// The exclude inode of snapshots.
        EXCLUDE_INODE = 0x80, "exclude_inode";
        /// The exclude bitmap of snapshots.
        EXCLUDE_BITMAP = 0x100, "exclude_bitmap";
        /// At most two backup superblocks, in the groups the superblock names.
        SPARSE_SUPER2 = 0x200, "sparse_super2";
        /// The journal may hold fast commits.
        FAST_COMMIT = 0x400, "fast_commit";
        /// Inode numbers and UUID do not change.
        STABLE_INODES = 0x800, "stable_inodes";
        /// An orphan file.
        ORPHAN_FILE = 0x1000, "orphan_file";
    }
}

flag_set! {
    /// Features that a driver must know, even to read.
    Incompat(u32) {
        /// Compressed files.
        COMPRESSION = 0x1, "compression";
        /// Directory entries carry the file type.
        FILETYPE = 0x2, "filetype";
        /// The journal must be replayed.
        RECOVER = 0x4, "needs_recovery";
        /// This is an external journal.
        JOURNAL_DEV = 0x8, "journal_dev";
        /// Group descriptors live in meta block groups.
        META_BG = 0x10, "meta_bg";
        /// Files have extent trees.
        EXTENTS = 0x40, "extent";
        /// Block numbers have 64 bits.
        BIT64 = 0x80, "64bit";
        /// Multiple-mount protection.
        MMP = 0x100, "mmp";
        /// Bitmaps and inode tables may lie in other groups.
        FLEX_BG = 0x200, "flex_bg";
        /// Large attribute values live in inodes.
        EA_INODE = 0x400, "ea_inode";
        /// Data in directory entries.
        DIRDATA = 0x1000, "dirdata";
        /// The checksum seed stands in the superblock.
        CSUM_SEED = 0x2000, "metadata_csum_seed";
        /// Directories past 2 GiB, three-level htrees.
        LARGEDIR = 0x4000, "large_dir";
        /// Small files live in their inode.
        INLINE_DATA = 0x8000, "inline_data";
        /// Encrypted files.
        ENCRYPT = 0x10000, "encrypt";
        /// Case-insensitive directories.
        CASEFOLD = 0x20000, "casefold";
    }
}

flag_set! {
    /// Features that a driver must know to write.
    RoCompat(u32) {
        /// Backup superblocks only in groups 0, 1 and powers of 3, 5, 7.
        SPARSE_SUPER = 0x1, "sparse_super";
        /// Files past 2 GiB.
        LARGE_FILE = 0x2, "large_file";
        /// Never used.
        BTREE_DIR = 0x4, "btree_dir";
        /// Files past 2 TiB: 48-bit block counts in inodes.
        HUGE_FILE = 0x8, "huge_file";
        /// CRC-16 on group descriptors, groups may be uninitialised.
        GDT_CSUM = 0x10, "uninit_bg";
        /// Directories may have more than 64998 subdirectories.
        DIR_NLINK = 0x20, "dir_nlink";
        /// Inodes are larger than 128 bytes with fields beyond.
        EXTRA_ISIZE = 0x40, "extra_isize";
        /// Snapshots.
        HAS_SNAPSHOT = 0x80, "snapshot";
        /// Quota inodes.
        QUOTA = 0x100, "quota";
        /// Allocation in clusters of blocks.
        BIGALLOC = 0x200, "bigalloc";
        /// CRC-32C on all metadata.
        METADATA_CSUM = 0x400, "metadata_csum";
        /// Data blocks have replicas.
        REPLICA = 0x800, "replica";
        /// Nothing may be written.
        READONLY = 0x1000, "read-only";
        /// Project quotas.
        PROJECT = 0x2000, "project";
        /// Copy-on-write block sharing.
        SHARED_BLOCKS = 0x4000, "shared_blocks";
        /// Files with Merkle trees.
        VERITY = 0x8000, "verity";
        /// The orphan file is not empty.
        ORPHAN_PRESENT = 0x10000, "orphan_present";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cover_known_and_unknown_bits() {
        assert_eq!(Incompat::from_bits(0x8000_0042).names(), ["filetype", "extent", "0x80000000"]);
        assert_eq!(RoCompat::by_name("metadata_csum"), Some(RoCompat::METADATA_CSUM));
        assert!(Compat::by_name("no such").is_none());
    }
}

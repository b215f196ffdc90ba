//! Making inodes.

use std::sync::Arc;

use onggi_disk_format::ext4::{Extent, FileType, Inode as DiskInode, InodeFlags};
use onggi_disk_format::{DiskBlock, FileBlock, InodeNr};
use onggi_ext4_volume::{Handle, alloc, dir, extents};
use onggi_vfs::{Attr, Context, Errno, Ino, Node};

use super::one_more_child;
use crate::Ext4;
use crate::core::{Result, disk_time};
use crate::error::through_the_door;
use crate::inode::Inode;
use crate::orphan;

const S_ISGID: u16 = 0o2000;
/// Flags that a new inode takes over from its directory.
const INHERITED: InodeFlags = InodeFlags::SYNC
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::PROJINHERIT);
/// Those that mean nothing for anything but directories.
const DIRECTORY_ONLY: InodeFlags =
    InodeFlags::DIRSYNC.union(InodeFlags::TOPDIR).union(InodeFlags::PROJINHERIT);
/// Bytes of a symlink target that fit the inode, the zero behind it included.
const FAST_SYMLINK: usize = 60;

impl Ext4 {
    pub(crate) fn make(
        &self,
        cx: &Context,
        dir: Ino,
        name: &[u8],
        node: Node<'_>,
        perm: u16,
    ) -> onggi_vfs::Result<Attr> {
        self.writable()?;
        self.see_time(cx.now);
        match node {
            Node::Symlink(b"") => return Err(Errno::NOENT.into()),
            Node::Symlink(target) if target.len() > 4095 => return Err(Errno::NAMETOOLONG.into()),
            _ => {}
        }
        let dir = self.place(dir, name)?;
        let _ops = dir.ops.write();
        self.check_free(&dir, name)?;
        // The target fits one block, with a zero behind it.
        if matches!(node, Node::Symlink(target) if target.len() as u64 >= self.block_size()) {
            return Err(Errno::NAMETOOLONG.into());
        }
        let is_dir = matches!(node, Node::Directory);
        if is_dir && !self.may_have_child(&dir) {
            return Err(Errno::MLINK.into());
        }
        let inode =
            self.with_space(|| self.make_once(cx, &dir, name, node, perm)).map_err(through_the_door)?;
        self.attr(&inode)
    }

    fn may_have_child(&self, dir: &Inode) -> bool {
        use onggi_disk_format::ext4::RoCompat;
        self.volume.sb.ro_compat().contains(RoCompat::DIR_NLINK)
            || dir.state.read().disk.links_count < super::MOST_LINKS
    }

    fn make_once(
        &self,
        cx: &Context,
        dir: &Arc<Inode>,
        name: &[u8],
        node: Node<'_>,
        perm: u16,
    ) -> Result<Arc<Inode>> {
        let credits = self.add_credits(dir) + self.node_credits();
        let (inode, idle) = self.change(credits, |h| {
            let (nr, mut disk) = self.new_inode(h, cx, dir, node, perm)?;
            let kind = disk.kind();
            let made = self
                .fill_new(h, nr, &mut disk, dir.nr, node)
                .and_then(|()| self.add_name(h, dir, name, nr, kind));
            if let Err(error) = made {
                self.unmake(h, nr, &mut disk)?;
                return Err(error);
            }
            let entered = self.enter(h, nr, disk.clone());
            self.volume.write_new_inode(h, nr, &disk)?;
            if kind == FileType::Directory {
                let mut state = dir.state.write();
                state.disk.links_count = one_more_child(state.disk.links_count);
            }
            self.touch_dir(h, cx, dir)?;
            Ok(entered)
        })?;
        self.let_go(idle);
        Ok(inode)
    }

    /// The object of a new inode, in the table before its slot is written: whoever comes with the number
    /// from now on finds this object and never makes a second one.
    fn enter(&self, h: &Handle<'_>, nr: InodeNr, disk: DiskInode) -> (Arc<Inode>, Vec<Arc<Inode>>) {
        let inode = Inode::new(nr, disk, &self.pages, self.volume.block_size());
        {
            let mut state = inode.state.write();
            state.sync_tid = Some(h.tid());
            state.datasync_tid = Some(h.tid());
        }
        let idle = self.inodes.insert(&inode);
        (inode, idle)
    }

    pub(crate) fn make_nameless(&self, cx: &Context, dir: Ino, perm: u16) -> onggi_vfs::Result<Attr> {
        self.writable()?;
        self.see_time(cx.now);
        let dir = self.directory(dir)?;
        let _ops = dir.ops.read();
        if dir.state.read().disk.links_count == 0 {
            return Err(Errno::PERM.into());
        }
        let made = self.with_space(|| {
            self.change(self.node_credits() + orphan::CREDITS, |h| {
                let (nr, mut disk) = self.new_inode(h, cx, &dir, Node::Regular, perm)?;
                disk.links_count = 0;
                if let Err(error) = self.orphans.add(&self.volume, h, nr) {
                    self.unmake(h, nr, &mut disk)?;
                    return Err(error);
                }
                let inode = Inode::new(nr, disk.clone(), &self.pages, self.volume.block_size());
                inode.retain();
                let idle = self.inodes.insert(&inode);
                self.volume.write_new_inode(h, nr, &disk)?;
                {
                    let mut state = inode.state.write();
                    state.is_orphan = true;
                    state.linkable = true;
                    self.save_contents(h, nr, &mut state)?;
                }
                Ok((inode, idle))
            })
        });
        let (inode, idle) = made.map_err(through_the_door)?;
        self.let_go(idle);
        self.attr(&inode)
    }

    /// Blocks that making an inode with its own first block may change.
    fn node_credits(&self) -> u32 {
        alloc::CREDITS_ALLOCATE_INODE + 2 * alloc::CREDITS_MARK_USED + 8
    }

    /// Allocates an inode and says what it is; it is not written yet.
    fn new_inode(
        &self,
        h: &mut Handle<'_>,
        cx: &Context,
        dir: &Inode,
        node: Node<'_>,
        perm: u16,
    ) -> Result<(InodeNr, DiskInode)> {
        let is_dir = matches!(node, Node::Directory);
        let nr = self.volume.alloc.allocate_inode(&self.volume, h, dir.nr, is_dir)?;
        let parent = dir.state.read();
        let kind = kind_of(node);
        let mut perm = if kind == FileType::Symlink { 0o777 } else { perm & 0o7777 };
        let hands_down = parent.disk.mode & S_ISGID != 0;
        if hands_down && is_dir {
            perm |= S_ISGID;
        }
        let mut flags = InodeFlags::from_bits(parent.disk.flags.bits() & INHERITED.bits());
        if !is_dir {
            flags.remove(DIRECTORY_ONLY);
        }
        let now = disk_time(cx.now);
        let mut disk = DiskInode {
            mode: kind.mode_bits() | perm,
            uid: cx.uid,
            gid: if hands_down { parent.disk.gid } else { cx.gid },
            size: 0,
            links_count: if is_dir { 2 } else { 1 },
            blocks: 0,
            flags,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            dtime: 0,
            generation: self.next_generation(),
            file_acl: DiskBlock(0),
            i_block: [0; 60],
            version: 1,
            extra_isize: self.volume.sb.want_extra_isize(),
            projid: if flags.contains(InodeFlags::PROJINHERIT) { parent.disk.projid } else { 0 },
        };
        match node {
            Node::Regular | Node::Directory => extents::init(&mut disk),
            Node::BlockDevice(major, minor) | Node::CharDevice(major, minor) => disk.set_device(major, minor),
            _ => {}
        }
        Ok((nr, disk))
    }

    /// Gives a new inode what it must hold from the start.
    fn fill_new(
        &self,
        h: &mut Handle<'_>,
        nr: InodeNr,
        disk: &mut DiskInode,
        parent: InodeNr,
        node: Node<'_>,
    ) -> Result<()> {
        match node {
            Node::Directory => dir::init(&self.volume, h, nr, disk, parent),
            Node::Symlink(target) if target.len() < FAST_SYMLINK => {
                disk.i_block[..target.len()].copy_from_slice(target);
                disk.size = target.len() as u64;
                Ok(())
            }
            Node::Symlink(target) => self.long_symlink(h, nr, disk, target),
            _ => Ok(()),
        }
    }

    /// A target that does not fit the inode takes one block, written through the journal.
    fn long_symlink(
        &self,
        h: &mut Handle<'_>,
        nr: InodeNr,
        disk: &mut DiskInode,
        target: &[u8],
    ) -> Result<()> {
        extents::init(disk);
        let goal = self.volume.alloc.inode_goal(nr);
        let run = self.volume.alloc.take(&self.volume, goal, 1)?;
        self.volume.alloc.mark_used(&self.volume, h, run)?;
        let extent = Extent { block: FileBlock(0), len: 1, start: run.start, unwritten: false };
        extents::insert(&self.volume, h, nr, disk, extent)?;
        let buffer = self.volume.buffers.fresh(run.start);
        h.modify(&buffer, |bytes| bytes[..target.len()].copy_from_slice(target))?;
        disk.size = target.len() as u64;
        Ok(())
    }

    /// Takes back an inode that found no room for its name, in the same transaction.
    fn unmake(&self, h: &mut Handle<'_>, nr: InodeNr, disk: &mut DiskInode) -> Result<()> {
        let is_dir = disk.kind() == FileType::Directory;
        if disk.flags.contains(InodeFlags::EXTENTS) {
            let progress = extents::remove(&self.volume, h, nr, disk, 0..u32::MAX, true)?;
            debug_assert_eq!(progress, extents::Progress::Done, "a new inode has a block or two");
        }
        disk.links_count = 0;
        disk.dtime = disk.ctime.sec.max(1) as u32;
        disk.size = 0;
        self.volume.write_new_inode(h, nr, disk)?;
        self.volume.alloc.free_inode(&self.volume, h, nr, is_dir)
    }
}

fn kind_of(node: Node<'_>) -> FileType {
    match node {
        Node::Regular => FileType::Regular,
        Node::Directory => FileType::Directory,
        Node::Symlink(_) => FileType::Symlink,
        Node::BlockDevice(..) => FileType::BlockDevice,
        Node::CharDevice(..) => FileType::CharDevice,
        Node::Fifo => FileType::Fifo,
        Node::Socket => FileType::Socket,
    }
}

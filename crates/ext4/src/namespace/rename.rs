//! Moving names.
//!
//! Lock order: the rename lock where two directories take part; then the two directories' `ops`, an
//! ancestor before its descendant, else the lower inode number first; then the replaced directory's.

use std::sync::Arc;

use onggi_disk_format::InodeNr;
use onggi_disk_format::ext4::FileType;
use onggi_disk_format::ext4::superblock::ROOT_INODE;
use onggi_ext4_volume::{Handle, VolumeError, dir};
use onggi_vfs::{Context, Errno, Ino, RenameMode};

use super::{is_dots, one_child_less, one_more_child};
use crate::Ext4;
use crate::core::{Result, disk_time};
use crate::error::through_the_door;
use crate::inode::Inode;
use crate::orphan;

/// What a rename found out before it changes anything.
struct Move<'a> {
    from: &'a Arc<Inode>,
    name: &'a [u8],
    to: &'a Arc<Inode>,
    new_name: &'a [u8],
    source: Arc<Inode>,
    target: Option<Arc<Inode>>,
}

impl Ext4 {
    pub(crate) fn move_name(
        &self,
        cx: &Context,
        from: Ino,
        name: &[u8],
        to: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> onggi_vfs::Result<()> {
        self.writable()?;
        self.see_time(cx.now);
        let (from, to) = (self.place(from, name)?, self.place(to, new_name)?);
        if is_dots(name) || is_dots(new_name) {
            let exists = mode == RenameMode::NoReplace && !is_dots(name);
            return Err(if exists { Errno::EXIST } else { Errno::BUSY }.into());
        }
        let _alone = (from.nr != to.nr).then(|| self.renames.lock());
        let (first, second) = if from.nr == to.nr {
            (&from, None)
        } else if self.is_below(&to, from.nr)? || (!self.is_below(&from, to.nr)? && from.nr < to.nr) {
            (&from, Some(&to))
        } else {
            (&to, Some(&from))
        };
        let _first = first.ops.write();
        let _second = second.map(|dir| dir.ops.write());
        let found = self.find(&from, name)?.ok_or(Errno::NOENT)?;
        let source = self.found(found)?;
        let target = self.find(&to, new_name)?.map(|found| self.found(found)).transpose()?;
        match (mode, &target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT.into()),
            _ => {}
        }
        let step = Move { from: &from, name, to: &to, new_name, source, target };
        if from.nr != to.nr {
            if step.source.is_dir() && (step.source.nr == to.nr || self.is_below(&to, step.source.nr)?) {
                return Err(Errno::INVAL.into());
            }
            if let Some(target) = step.target.as_ref().filter(|target| target.is_dir())
                && (target.nr == from.nr || self.is_below(&from, target.nr)?)
            {
                let swaps = mode == RenameMode::Exchange;
                return Err(if swaps { Errno::INVAL } else { Errno::NOTEMPTY }.into());
            }
        }
        match (mode, &step.target) {
            (_, Some(target)) if target.nr == step.source.nr => Ok(()),
            (RenameMode::Exchange, Some(target)) => {
                let target = Arc::clone(target);
                self.exchange(cx, &step, &target).map_err(through_the_door)
            }
            _ => self.replace(cx, &step),
        }
    }

    /// Whether `dir` lies below the directory `above`.
    fn is_below(&self, dir: &Arc<Inode>, above: InodeNr) -> onggi_vfs::Result<bool> {
        let mut nr = dir.nr;
        // A circle comes back to the last inode at which the steps were a power of two.
        let (mut steps, mut seen) = (0_u64, nr);
        while nr != ROOT_INODE {
            let here = self.load(nr)?;
            nr = self.parent(&here)?;
            if nr == above {
                return Ok(true);
            }
            steps += 1;
            if nr == seen {
                return Err(through_the_door(VolumeError::corrupt(
                    "directory tree",
                    onggi_ext4_volume::Place::Inode(dir.nr),
                    "parents run in a circle",
                )));
            }
            if steps.is_power_of_two() {
                seen = nr;
            }
        }
        Ok(false)
    }

    fn replace(&self, cx: &Context, step: &Move<'_>) -> onggi_vfs::Result<()> {
        let moves_dir = step.source.is_dir();
        // Held while the change runs: nobody makes a name in a directory that is being replaced.
        let _target_ops = match &step.target {
            Some(target) if moves_dir && !target.is_dir() => return Err(Errno::NOTDIR.into()),
            Some(target) if !moves_dir && target.is_dir() => return Err(Errno::ISDIR.into()),
            Some(target) if target.is_dir() => {
                self.check_child(step.to, target)?;
                let guard = target.ops.write();
                if !self.is_empty_dir(target)? {
                    return Err(Errno::NOTEMPTY.into());
                }
                Some(guard)
            }
            _ => None,
        };
        let new_child = moves_dir && step.target.is_none() && step.from.nr != step.to.nr;
        if new_child
            && step.to.state.read().disk.links_count >= super::MOST_LINKS
            && !self.counts_past_limit()
        {
            return Err(Errno::MLINK.into());
        }
        if step.target.is_some() && step.source.kind == FileType::Regular {
            // Who replaces a file by a newly written one expects the one or the other after a power cut,
            // not an empty file.
            self.write_back(&step.source).map_err(through_the_door)?;
        }
        let credits = self.add_credits(step.to) + 3 * dir::CREDITS_CHANGE + 6 + orphan::CREDITS;
        self.with_space(|| self.change(credits, |h| self.replace_in(h, cx, step)))
            .map_err(through_the_door)?;
        drop(_target_ops);
        match &step.target {
            Some(target) => self.reap(cx, target),
            None => Ok(()),
        }
    }

    fn counts_past_limit(&self) -> bool {
        use onggi_disk_format::ext4::RoCompat;
        self.volume.sb.ro_compat().contains(RoCompat::DIR_NLINK)
    }

    fn replace_in(&self, h: &mut Handle<'_>, cx: &Context, step: &Move<'_>) -> Result<()> {
        let (source, to) = (&step.source, step.to);
        match &step.target {
            // First, because it alone can lack space: then nothing has changed yet.
            None => self.add_name(h, to, step.new_name, source.nr, source.kind)?,
            Some(_) => self.point(h, to, step.new_name, source)?,
        }
        self.remove_name(h, step.from, step.name)?;
        if source.is_dir() && step.from.nr != to.nr {
            self.reparent(h, source, to.nr)?;
            let mut state = step.from.state.write();
            state.disk.links_count = one_child_less(state.disk.links_count);
            drop(state);
            let mut state = to.state.write();
            state.disk.links_count = one_more_child(state.disk.links_count);
        }
        if let Some(target) = &step.target {
            if target.is_dir() {
                let mut state = to.state.write();
                state.disk.links_count = one_child_less(state.disk.links_count);
            }
            self.drop_link(h, cx, target)?;
        }
        self.stamp_moved(h, cx, source)?;
        self.touch_dir(h, cx, step.from)?;
        if step.from.nr == to.nr { Ok(()) } else { self.touch_dir(h, cx, to) }
    }

    fn exchange(&self, cx: &Context, step: &Move<'_>, target: &Arc<Inode>) -> Result<()> {
        let (source, from, to) = (&step.source, step.from, step.to);
        self.change(4 * dir::CREDITS_CHANGE + 8, |h| {
            self.point(h, to, step.new_name, source)?;
            self.point(h, from, step.name, target)?;
            if from.nr != to.nr {
                for (child, old, new) in [(source, from, to), (target, to, from)] {
                    if child.is_dir() {
                        self.reparent(h, child, new.nr)?;
                        if !(source.is_dir() && target.is_dir()) {
                            let mut state = old.state.write();
                            state.disk.links_count = one_child_less(state.disk.links_count);
                            drop(state);
                            let mut state = new.state.write();
                            state.disk.links_count = one_more_child(state.disk.links_count);
                        }
                    }
                }
            }
            self.stamp_moved(h, cx, source)?;
            self.stamp_moved(h, cx, target)?;
            self.touch_dir(h, cx, from)?;
            if from.nr == to.nr { Ok(()) } else { self.touch_dir(h, cx, to) }
        })
    }

    /// Makes an existing name stand for another inode.
    fn point(&self, h: &mut Handle<'_>, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let mut state = dir.state.write();
        dir::replace(&self.volume, h, dir.nr, &mut state.disk, name, inode.nr, inode.kind as u8)?;
        Ok(())
    }

    fn reparent(&self, h: &mut Handle<'_>, child: &Inode, parent: InodeNr) -> Result<()> {
        let mut state = child.state.write();
        dir::set_parent(&self.volume, h, child.nr, &mut state.disk, parent)
    }

    fn stamp_moved(&self, h: &mut Handle<'_>, cx: &Context, inode: &Inode) -> Result<()> {
        let mut state = inode.state.write();
        state.disk.ctime = disk_time(cx.now);
        self.save_contents(h, inode.nr, &mut state)
    }
}

//! Attributes and extended attributes.

use std::sync::Arc;

use onggi_vfs::{Context, Errno, FileKind, Ino, SetAttr, XattrMode};

use crate::state::{Answer, Body, NAME_MAX, State};

const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

impl State {
    pub(crate) fn setattr(&mut self, cx: &Context, ino: Ino, changes: &SetAttr) -> Answer<()> {
        let max_file_size = self.limits.max_file_size;
        let inode = self.edit(ino)?;
        let kind = inode.kind();
        if let Some(new) = changes.size {
            match &mut inode.body {
                Body::Regular { size, content } => {
                    if new > max_file_size {
                        return Err(Errno::FBIG);
                    }
                    content.truncate(new);
                    if new != *size {
                        inode.mtime = cx.now;
                    }
                    *size = new;
                }
                Body::Directory(_) => return Err(Errno::ISDIR),
                _ => return Err(Errno::INVAL),
            }
        }
        if *changes == SetAttr::default() {
            return Ok(());
        }
        if let Some(perm) = changes.perm
            && kind != FileKind::Symlink
        {
            inode.perm = perm & 0o7777;
        }
        inode.uid = changes.uid.unwrap_or(inode.uid);
        inode.gid = changes.gid.unwrap_or(inode.gid);
        inode.atime = changes.atime.unwrap_or(inode.atime);
        inode.mtime = changes.mtime.unwrap_or(inode.mtime);
        inode.crtime = changes.crtime.unwrap_or(inode.crtime);
        inode.ctime = cx.now;
        Ok(())
    }

    /// `ERANGE`, then the rule for `user.*`, then the namespace: `EINVAL` for nothing but one.
    fn check_xattr(&self, ino: Ino, name: &[u8], refusal: Errno) -> Answer<()> {
        let kind = self.inode(ino)?.kind();
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(Errno::RANGE);
        }
        if name.starts_with(b"user.") && !matches!(kind, FileKind::Regular | FileKind::Directory) {
            return Err(refusal);
        }
        match NAMESPACES.iter().find(|space| name.starts_with(space)) {
            Some(space) if name.len() == space.len() => Err(Errno::INVAL),
            Some(_) => Ok(()),
            None => Err(Errno::OPNOTSUPP),
        }
    }

    pub(crate) fn getxattr(&self, ino: Ino, name: &[u8]) -> Answer<Vec<u8>> {
        self.check_xattr(ino, name, Errno::NODATA)?;
        self.inode(ino)?.xattrs.get(name).map(|value| value.to_vec()).ok_or(Errno::NODATA)
    }

    pub(crate) fn setxattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Answer<()> {
        self.check_xattr(ino, name, Errno::PERM)?;
        let value_max = self.limits.xattr_value_max;
        let inode = self.edit(ino)?;
        let old = inode.xattrs.get(name);
        match mode {
            XattrMode::Create if old.is_some() => return Err(Errno::EXIST),
            XattrMode::Replace if old.is_none() => return Err(Errno::NODATA),
            _ => {}
        }
        if old.is_some_and(|old| **old == *value) {
            return Ok(());
        }
        if value.len() > value_max {
            return Err(Errno::NOSPC);
        }
        inode.xattrs.insert(name.to_vec(), Arc::from(value));
        inode.ctime = cx.now;
        Ok(())
    }

    pub(crate) fn removexattr(&mut self, cx: &Context, ino: Ino, name: &[u8]) -> Answer<()> {
        self.check_xattr(ino, name, Errno::PERM)?;
        let inode = self.edit(ino)?;
        inode.xattrs.remove(name).ok_or(Errno::NODATA)?;
        inode.ctime = cx.now;
        Ok(())
    }
}

//! fsync and its relatives.

use std::sync::Arc;

use crate::Ext4;
use crate::core::Result;
use crate::inode::Inode;

impl Ext4 {
    /// Makes the inode durable. On return every byte written before the call is behind a flush: that of
    /// the commit when the commit began after the data was written, else one of its own.
    pub(crate) fn sync_inode(&self, inode: &Arc<Inode>, datasync: bool) -> Result<()> {
        self.write_back(inode)?;
        let unsaved = {
            let state = inode.state.read();
            if datasync { state.unsaved_size } else { state.unsaved }
        };
        if unsaved {
            self.save_attributes(inode)?;
        }
        let tid = {
            let state = inode.state.read();
            if datasync { state.datasync_tid } else { state.sync_tid }
        };
        if let Some(tid) = tid.filter(|&tid| !self.volume.journal.is_durable(tid)) {
            // A transaction that still runs is committed, and flushed, after this point; one whose commit
            // is under way may have flushed before our data was written.
            let covers = self.volume.journal.running() == Some(tid);
            self.commit(tid)?;
            if covers {
                return Ok(());
            }
        } else if let Some(error) = self.volume.journal.aborted() {
            return Err(error.into());
        }
        self.volume.device().flush()?;
        Ok(())
    }

    /// Writes attributes that are newer in memory into a transaction.
    pub(crate) fn save_attributes(&self, inode: &Arc<Inode>) -> Result<()> {
        {
            let state = inode.state.read();
            if !state.unsaved || state.freed {
                return Ok(());
            }
        }
        self.change(2, |h| {
            let mut state = inode.state.write();
            if state.freed { Ok(()) } else { self.save_contents(h, inode.nr, &mut state) }
        })
    }
}

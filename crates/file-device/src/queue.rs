//! What sysfs says of a block device's request queue.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use onggi_block_device::{AfterDiscard, DiscardLimits};
use rustix::fs::{Dev, major, minor};

/// Facts from `/sys/dev/block/MAJOR:MINOR`; where one is not told, the cautious answer.
pub(crate) struct Queue {
    pub(crate) volatile_cache: bool,
    pub(crate) fua: bool,
    pub(crate) discard: Option<DiscardLimits>,
}

impl Queue {
    pub(crate) fn of(device: Dev) -> Self {
        let own = PathBuf::from(format!("/sys/dev/block/{}:{}", major(device), minor(device)));
        // A partition has no queue of its own; its disk is the folder above.
        let queue = [own.join("queue"), own.join("../queue")].into_iter().find(|path| path.is_dir());
        Self::read(&own, queue.as_deref())
    }

    fn read(own: &Path, queue: Option<&Path>) -> Self {
        let Some(queue) = queue else { return Self { volatile_cache: true, fua: true, discard: None } };
        let volatile_cache = text(&queue.join("write_cache")).is_none_or(|mode| mode != "write through");
        let fua = !volatile_cache || number::<u8>(&queue.join("fua")).is_none_or(|fua| fua != 0);
        let granularity = number(&queue.join("discard_granularity")).unwrap_or(0u64);
        let most = number(&queue.join("discard_max_bytes")).unwrap_or(0u64);
        let discard = (granularity > 0 && most > 0).then(|| DiscardLimits {
            granularity,
            alignment: number(&own.join("discard_alignment")).unwrap_or(0),
            after: AfterDiscard::NonDeterministic,
        });
        Self { volatile_cache, fua, discard }
    }
}

fn text(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

fn number<N: FromStr>(path: &Path) -> Option<N> {
    text(path)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_queue_of_a_disk_with_a_volatile_cache() {
        let folder = tempfile::tempdir().unwrap();
        let queue = folder.path().join("queue");
        std::fs::create_dir(&queue).unwrap();
        let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        put("queue/write_cache", "write back\n");
        put("queue/fua", "0\n");
        put("queue/discard_granularity", "4096\n");
        put("queue/discard_max_bytes", "2147450880\n");
        put("discard_alignment", "512\n");
        let facts = Queue::read(folder.path(), Some(&queue));
        assert!(facts.volatile_cache);
        assert!(!facts.fua);
        assert_eq!(
            facts.discard,
            Some(DiscardLimits { granularity: 4096, alignment: 512, after: AfterDiscard::NonDeterministic })
        );
        put("queue/write_cache", "write through\n");
        put("queue/discard_max_bytes", "0\n");
        let facts = Queue::read(folder.path(), Some(&queue));
        assert!(!facts.volatile_cache);
        assert!(facts.fua, "without a volatile cache every write is durable");
        assert_eq!(facts.discard, None);
    }

    #[test]
    fn an_unknown_queue_is_taken_for_a_volatile_one() {
        let facts = Queue::read(Path::new("/nonexistent"), None);
        assert!(facts.volatile_cache && facts.fua && facts.discard.is_none());
    }
}

//! Reads what is left of a damaged file of histories.
//!
//! redb opens a file only if all pages of its trees are there. This reads the trees itself, in file format 3 of redb
//! (<https://github.com/cberner/redb/blob/master/docs/design.md>). Every page has a checksum in its parent, so that a page that is missing
//! or damaged is left out, with everything below it, and whatever is returned was stored.
//!
//! ```text
//! head      magic 9, flags 1, -, page length u32, pages of a region's head u32, of its data u32; at 64 and 192 the commit slots
//! slot      version 1, has root 1, -, at 8 the root of the tables' tree; at 104 the transaction u64; at 112 the checksum of the slot
//! root      page u64, checksum u128, length u64
//! leaf      1, -, count u16, ends of keys u32 each, ends of values u32 each, keys, values
//! branch    2, -, count u16, -, at 8 checksums of children u128 each, their pages u64 each, ends of keys u32 each, keys
//! page      index in the region in 20 bits, region in 20 bits, -, order in the 5 highest: 2^order pages of the file
//! ```

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use xxhash_rust::xxh3::xxh3_128;

/// The length of the head with both slots.
const HEAD_LEN: usize = 320;
const SLOTS: [usize; 2] = [64, 192];
const SLOT_LEN: usize = 128;
/// The part of a slot that its checksum covers.
const SLOT_CHECKED_LEN: usize = 112;
/// The file format of redb that this reads.
const FORMAT: u8 = 3;

/// Flags of the head, and where they are.
pub(super) const FLAGS_AT: u64 = 9;
const SECOND_IS_PRIMARY: u8 = 1;
pub(super) const RECOVERY_REQUIRED: u8 = 2;

/// The type of a page.
const LEAF: u8 = 1;
const BRANCH: u8 = 2;

/// The maximum depth of a tree. Each level of branches has at least two children.
const DEPTH_MAX: usize = 40;

/// A damaged file.
pub(super) struct Damaged {
    file: File,
    len: u64,
    page_len: u64,
    region_head_len: u64,
    region_len: u64,
    /// The trees of the tables in the newest commit that can be read.
    tables: Root,
    /// Whether that commit is known to be the newest one of the file.
    pub(super) is_newest: bool,
}

/// The root of a tree, or another page of it.
#[derive(Clone, Copy, Debug)]
struct Root {
    page: u64,
    checksum: u128,
}

impl Root {
    fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let page = u64::from_le_bytes(array(bytes, at)?);
        Some(Self { page, checksum: u128::from_le_bytes(array(bytes, at + 8)?) })
    }
}

/// A commit slot whose checksum is right.
struct Slot {
    transaction: u64,
    /// `None` if there are no tables.
    tables: Option<Root>,
}

impl Slot {
    fn read(head: &[u8], at: usize) -> Option<Self> {
        let slot = head.get(at..at + SLOT_LEN)?;
        let checksum = u128::from_le_bytes(array(slot, SLOT_CHECKED_LEN)?);
        if slot[0] != FORMAT || xxh3_128(&slot[..SLOT_CHECKED_LEN]) != checksum {
            return None;
        }
        let tables = if slot[1] == 0 { None } else { Some(Root::read(slot, 8)?) };
        Some(Self { transaction: u64::from_le_bytes(array(slot, 104)?), tables })
    }
}

impl Damaged {
    /// Opens a file; `None` if not even the list of its tables is left.
    ///
    /// # Errors
    /// It cannot be read, or another process uses it.
    pub(super) fn open(mut file: File) -> std::io::Result<Option<Self>> {
        file.try_lock()?;
        let len = file.seek(SeekFrom::End(0))?;
        let mut head = [0; HEAD_LEN];
        if len < HEAD_LEN as u64 {
            return Ok(None);
        }
        file.rewind()?;
        file.read_exact(&mut head)?;
        if !head.starts_with(b"redb") {
            return Ok(None);
        }
        let number = |at| array(&head, at).map_or(0, |bytes| u64::from(u32::from_le_bytes(bytes)));
        let (page_len, region_head, region_data) = (number(12), number(16), number(20));
        let Some(region_len) = (region_head + region_data).checked_mul(page_len) else { return Ok(None) };
        let primary = usize::from(head[FLAGS_AT as usize] & SECOND_IS_PRIMARY);
        let [first, second] = [SLOTS[primary], SLOTS[1 - primary]].map(|at| Slot::read(&head, at));
        // After a crash the newer of the two counts, whichever was the primary one.
        let is_swapped = head[FLAGS_AT as usize] & RECOVERY_REQUIRED != 0
            && second.as_ref().map(|slot| slot.transaction) > first.as_ref().map(|slot| slot.transaction);
        let slots = if is_swapped { [second, first] } else { [first, second] };
        // The flags have no checksum, the transactions have: redb writes both slots when it creates a file.
        let is_first_newest = match &slots {
            [Some(first), Some(second)] => first.transaction >= second.transaction,
            _ => false,
        };
        for (is_newest, slot) in [is_first_newest, false].into_iter().zip(slots) {
            let Some(tables) = slot.and_then(|slot| slot.tables) else { continue };
            let file = file.try_clone()?;
            let region_head_len = region_head * page_len;
            let damaged = Self { file, len, page_len, region_head_len, region_len, tables, is_newest };
            if damaged.page(tables)?.is_some() {
                return Ok(Some(damaged));
            }
        }
        Ok(None)
    }

    /// Calls `row` with each row of a table that can be read, in their order.
    pub(super) fn rows(&self, table: &str, mut row: impl FnMut(&[u8], &[u8])) -> std::io::Result<()> {
        let mut found = None;
        self.walk(self.tables, DEPTH_MAX, &mut |name, definition| {
            if name == table.as_bytes() {
                found = root_of_table(definition);
            }
        })?;
        match found {
            Some(root) => self.walk(root, DEPTH_MAX, &mut row),
            None => Ok(()),
        }
    }

    fn walk(&self, root: Root, depth_max: usize, row: &mut impl FnMut(&[u8], &[u8])) -> std::io::Result<()> {
        let (Some(page), Some(below)) = (self.page(root)?, depth_max.checked_sub(1)) else { return Ok(()) };
        match &page {
            Page::Leaf { bytes, count } => {
                (0..*count).filter_map(|n| pair(bytes, *count, n)).for_each(|(key, value)| row(key, value));
            }
            Page::Branch { bytes, count } => {
                for child in (0..=*count).filter_map(|n| child(bytes, *count, n)) {
                    self.walk(child, below, row)?;
                }
            }
        }
        Ok(())
    }

    /// A page; `None` if it is missing or damaged.
    fn page(&self, root: Root) -> std::io::Result<Option<Page>> {
        let Some((begin, len)) = self.place(root.page) else { return Ok(None) };
        let mut bytes = vec![0; len];
        let mut file = &self.file;
        file.seek(SeekFrom::Start(begin))?;
        file.read_exact(&mut bytes)?;
        Ok(Page::check(bytes, root.checksum))
    }

    /// Where a page is, and its length; `None` if the file is too short for it.
    fn place(&self, page: u64) -> Option<(u64, usize)> {
        let order = u32::try_from(page >> 59).ok()?;
        let (index, region) = (page & (0xf_ffff >> order), page >> 20 & 0xf_ffff);
        let len = self.page_len.checked_mul(1 << order)?;
        let in_region = self.region_head_len.checked_add(index.checked_mul(len)?)?;
        let begin =
            self.page_len.checked_add(region.checked_mul(self.region_len)?)?.checked_add(in_region)?;
        let end = begin.checked_add(len)?;
        if end > self.len { None } else { Some((begin, usize::try_from(len).ok()?)) }
    }
}

/// A page whose checksum is right. `count` is that of its keys.
enum Page {
    Leaf { bytes: Vec<u8>, count: usize },
    Branch { bytes: Vec<u8>, count: usize },
}

impl Page {
    fn check(bytes: Vec<u8>, checksum: u128) -> Option<Self> {
        let kind = *bytes.first()?;
        let count = usize::from(u16::from_le_bytes(array(&bytes, 2)?));
        let last = count.checked_sub(1)?;
        let end = match kind {
            LEAF => end(&bytes, 4 + 4 * (count + last))?,
            BRANCH => end(&bytes, 8 + 24 * (count + 1) + 4 * last)?,
            _ => return None,
        };
        if xxh3_128(bytes.get(..end)?) != checksum {
            return None;
        }
        Some(if kind == LEAF { Self::Leaf { bytes, count } } else { Self::Branch { bytes, count } })
    }
}

/// The key and the value with this number in a leaf.
fn pair(leaf: &[u8], count: usize, n: usize) -> Option<(&[u8], &[u8])> {
    let key_end = |n| end(leaf, 4 + 4 * n);
    let value_end = |n| end(leaf, 4 + 4 * (count + n));
    let (key_begin, value_begin) = match n.checked_sub(1) {
        Some(before) => (key_end(before)?, value_end(before)?),
        None => (4 + 8 * count, key_end(count - 1)?),
    };
    Some((leaf.get(key_begin..key_end(n)?)?, leaf.get(value_begin..value_end(n)?)?))
}

fn child(branch: &[u8], count: usize, n: usize) -> Option<Root> {
    let checksum = u128::from_le_bytes(array(branch, 8 + 16 * n)?);
    let page = u64::from_le_bytes(array(branch, 8 + 16 * (count + 1) + 8 * n)?);
    Some(Root { page, checksum })
}

/// The root of a table, from its definition: its kind, its length, whether it has a root, the root, and for keys and for values whether
/// they have a fixed length, which those of this file have not.
fn root_of_table(definition: &[u8]) -> Option<Root> {
    const NORMAL: u8 = 3;
    let is_known = definition.first() == Some(&NORMAL)
        && definition.get(9) == Some(&1)
        && definition.get(42) == Some(&0)
        && definition.get(47) == Some(&0);
    if is_known { Root::read(definition, 10) } else { None }
}

fn end(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(array(bytes, at)?)).ok()
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

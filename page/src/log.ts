/** Messages of one connection, bounded in number and bytes, and filtered views of them. */

import { utf8Length } from './format';

export type Direction = 'sent' | 'received';
export type Kind = 'text' | 'binary';

export interface Entry {
  id: number;
  time: number;
  direction: Direction;
  kind: Kind;
  data: string | Uint8Array;
  /** Bytes; those of a text as UTF-8. */
  size: number;
  /** Who wrote it, in a room. */
  author?: string;
}

/** A row is small; this is an hour at 27 messages a second. */
const ENTRIES_MAX = 100_000;
/** Eight messages of 16 MiB. */
const SIZE_MAX = 128 * 1_048_576;
/** Rows are removed in blocks of this many, or of this part of the bytes, so that removal is cheap. */
const BLOCK = 1024;
const BLOCKS = 16;
/** A search looks at the beginning of a message only. */
const SEARCHED_MAX = 65_536;

export class MessageLog {
  private entries: Entry[] = [];
  private size = 0;
  /** The number of the oldest entry that is kept. */
  first = 0;
  /** The number of the next entry. */
  next = 0;

  constructor(
    private readonly entriesMax = ENTRIES_MAX,
    private readonly sizeMax = SIZE_MAX,
  ) {}

  /** Adds a message. Its bytes. */
  push(direction: Direction, data: string | Uint8Array, { time = Date.now(), author }: { time?: number; author?: string } = {}): number {
    const kind = typeof data === 'string' ? 'text' : 'binary';
    const size = typeof data === 'string' ? utf8Length(data) : data.length;
    this.entries.push({ id: this.next++, time, direction, kind, data, size, author });
    this.size += size;
    if (this.entries.length > this.entriesMax || this.size > this.sizeMax) this.drop(this.block());
    return size;
  }

  get(id: number): Entry | undefined {
    return this.entries[id - this.first];
  }

  clear(): void {
    this.drop(this.entries.length);
  }

  /** The number of old entries to remove. */
  private block(): number {
    let count = 0;
    let size = this.size;
    while (count < this.entries.length - 1) {
      const isBlock = count >= BLOCK || size <= this.size - this.sizeMax / BLOCKS;
      if (isBlock && size <= this.sizeMax) break;
      size -= this.entries[count++]!.size;
    }
    return count;
  }

  private drop(count: number): void {
    for (const entry of this.entries.splice(0, count)) this.size -= entry.size;
    this.first += count;
  }
}

export interface Filter {
  direction: Direction | 'all';
  kind: Kind | 'all';
  search: string;
}

export const EVERYTHING: Filter = { direction: 'all', kind: 'all', search: '' };

export function matches(entry: Entry, filter: Filter): boolean {
  if (filter.direction !== 'all' && entry.direction !== filter.direction) return false;
  if (filter.kind !== 'all' && entry.kind !== filter.kind) return false;
  if (filter.search === '') return true;
  const needle = filter.search.toLowerCase();
  if (typeof entry.data === 'string') return entry.data.slice(0, SEARCHED_MAX).toLowerCase().includes(needle);
  const digits = needle.replace(/\s/g, '');
  if (digits === '') return true;
  let hex = '';
  for (const byte of entry.data.subarray(0, 4096)) hex += byte.toString(16).padStart(2, '0');
  return hex.includes(digits);
}

/** The entries that pass a filter. New entries are tested once. */
export class View {
  private ids: number[] = [];
  private start = 0;
  private tested = 0;

  constructor(
    private readonly log: MessageLog,
    readonly filter: Filter,
  ) {}

  /** Includes the entries before `end`, and forgets those that the log has dropped. */
  update(end = this.log.next): void {
    for (let id = Math.max(this.tested, this.log.first); id < end; id++) {
      if (matches(this.log.get(id)!, this.filter)) this.ids.push(id);
    }
    this.tested = Math.max(this.tested, end);
    while (this.start < this.ids.length && this.ids[this.start]! < this.log.first) this.start++;
    if (this.start > 16 * BLOCK) {
      this.ids.splice(0, this.start);
      this.start = 0;
    }
  }

  get length(): number {
    return this.ids.length - this.start;
  }

  at(index: number): Entry | undefined {
    const id = this.ids[this.start + index];
    return id === undefined ? undefined : this.log.get(id);
  }

  /** The entries that the log still has: it may have dropped some since the last update. */
  *entries(): Generator<Entry> {
    for (let index = 0; index < this.length; index++) {
      const entry = this.at(index);
      if (entry) yield entry;
    }
  }
}

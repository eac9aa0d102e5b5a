/** The list of messages: virtual scrolling, filters, search, pause, copy and export. */

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { base64, bytes, clock, count, hexDump, messageCount, pretty, preview, SHOWN_MAX, visible } from './format';
import { type Direction, EVERYTHING, type Entry, type Filter, type Kind, type MessageLog, View } from './log';

const ROW = 32;
const OVERSCAN = 8;

interface Props {
  log: MessageLog;
  empty: string;
  onClear: () => void;
}

export function Messages({ log, empty, onClear }: Props) {
  const [filter, setFilter] = useState<Filter>(EVERYTHING);
  const [pausedAt, setPausedAt] = useState<number | null>(null);
  const [selected, setSelected] = useState<number | null>(null);
  const view = useMemo(() => new View(log, filter), [log, filter, log.next === log.first]);
  view.update(pausedAt ?? undefined);
  useEffect(() => setSelected(null), [log]);

  const waiting = pausedAt === null ? 0 : log.next - pausedAt;
  const entry = selected === null ? undefined : log.get(selected);
  const total = log.next - log.first;
  const all = messageCount(total);
  const shown = view.length === total ? all : `${count(view.length)} of ${all}`;
  return (
    <section class="messages" aria-label="Messages">
      <div class="toolbar">
        <label class="grow">
          <span class="hidden">Search the messages</span>
          <input type="search" placeholder="Search" value={filter.search} onInput={(event) => setFilter({ ...filter, search: event.currentTarget.value })} />
        </label>
        <label>
          <span class="hidden">Direction</span>
          <select value={filter.direction} onChange={(event) => setFilter({ ...filter, direction: event.currentTarget.value as Direction | 'all' })}>
            <option value="all">Both directions</option>
            <option value="sent">Sent</option>
            <option value="received">Received</option>
          </select>
        </label>
        <label>
          <span class="hidden">Type</span>
          <select value={filter.kind} onChange={(event) => setFilter({ ...filter, kind: event.currentTarget.value as Kind | 'all' })}>
            <option value="all">All types</option>
            <option value="text">Text</option>
            <option value="binary">Binary</option>
          </select>
        </label>
        <button type="button" aria-pressed={pausedAt !== null} onClick={() => setPausedAt(pausedAt === null ? log.next : null)}>
          {pausedAt === null ? 'Pause' : `Resume (${count(waiting)} new)`}
        </button>
        <button type="button" disabled={view.length === 0} onClick={() => download(view)}>
          Export JSON
        </button>
        <button type="button" disabled={total === 0} onClick={onClear}>
          Clear
        </button>
      </div>
      {total === 0 ? (
        <p class="empty">{empty}</p>
      ) : view.length === 0 ? (
        <p class="empty">No message passes the filter.</p>
      ) : (
        <List view={view} selected={selected} onSelect={setSelected} follows={pausedAt === null} />
      )}
      <p class="note">
        {shown}
        {log.first > 0 && total > 0 ? `; ${count(log.first)} older ones were removed` : ''}
      </p>
      {entry && <Detail key={entry.id} entry={entry} onClose={() => setSelected(null)} />}
    </section>
  );
}

interface ListProps {
  view: View;
  selected: number | null;
  follows: boolean;
  onSelect: (id: number) => void;
}

function List({ view, selected, follows, onSelect }: ListProps) {
  const box = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(400);
  const length = view.length;

  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => setHeight(box.current?.clientHeight ?? 400));
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (follows && isAtEnd.current && box.current) box.current.scrollTop = length * ROW;
  }, [length, follows, view]);

  const first = Math.max(0, Math.min(Math.floor(top / ROW), length) - OVERSCAN);
  const last = Math.min(length, first + Math.ceil(height / ROW) + 2 * OVERSCAN);
  const rows: Entry[] = [];
  for (let index = first; index < last; index++) {
    const entry = view.at(index);
    if (entry) rows.push(entry);
  }

  const move = (event: KeyboardEvent) => {
    const page = Math.max(1, Math.floor(height / ROW) - 1);
    const steps: Record<string, number> = { ArrowUp: -1, ArrowDown: 1, PageUp: -page, PageDown: page, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    let current = rows.findIndex((entry) => entry.id === selected);
    current = current < 0 ? (step > 0 ? first - 1 : last) : first + current;
    const index = Math.max(0, Math.min(length - 1, current + step));
    const entry = view.at(index);
    if (!entry) return;
    onSelect(entry.id);
    const list = box.current!;
    list.scrollTop = Math.min(Math.max(list.scrollTop, (index + 1) * ROW - list.clientHeight), index * ROW);
  };

  return (
    <div
      ref={box}
      class="list"
      role="listbox"
      tabIndex={0}
      aria-label="Messages, newest last"
      aria-activedescendant={rows.some((entry) => entry.id === selected) ? `row-${selected}` : undefined}
      onKeyDown={move}
      onScroll={(event) => {
        const list = event.currentTarget;
        isAtEnd.current = list.scrollTop + list.clientHeight >= list.scrollHeight - ROW;
        setTop(list.scrollTop);
      }}
    >
      <div class="rows" role="presentation" style={{ height: `${length * ROW}px` }}>
        <div role="presentation" style={{ transform: `translateY(${first * ROW}px)` }}>
          {rows.map((entry, index) => (
            <div
              key={entry.id}
              id={`row-${entry.id}`}
              class={`row ${entry.direction}`}
              role="option"
              aria-selected={entry.id === selected}
              aria-setsize={length}
              aria-posinset={first + index + 1}
              onClick={() => onSelect(entry.id)}
            >
              <span class="time">{clock(entry.time)}</span>
              <span class="direction">
                <span aria-hidden="true">{entry.direction === 'sent' ? '↑' : '↓'}</span>
                <span class="hidden">{entry.direction}</span>
              </span>
              <span class="data" data-author={entry.author}>
                {entry.size === 0 ? <i>empty {entry.kind}</i> : preview(entry.data)}
              </span>
              <span class="size">
                {entry.kind === 'binary' && 'binary '}
                {bytes(entry.size)}
              </span>
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}

function Detail({ entry, onClose }: { entry: Entry; onClose: () => void }) {
  const [note, setNote] = useState('');
  const { data } = entry;
  const isLong = data.length > SHOWN_MAX;
  const text = typeof data === 'string' ? pretty(data.slice(0, SHOWN_MAX)) : hexDump(data.subarray(0, SHOWN_MAX / 16));
  const isCut = typeof data === 'string' ? isLong : data.length > SHOWN_MAX / 16;
  const copy = async () => {
    const whole = typeof data === 'string' ? data : Array.from(data, (byte) => byte.toString(16).padStart(2, '0')).join('');
    try {
      await navigator.clipboard.writeText(whole);
      setNote('Copied.');
    } catch {
      setNote('The browser does not allow copying here.');
    }
  };
  return (
    <section class="detail" aria-label="Selected message">
      <div class="toolbar">
        <h2 class="grow">
          {entry.direction === 'sent' ? 'Sent' : 'Received'} {clock(entry.time)} {entry.author && `· ${entry.author} `}· {entry.kind} · {bytes(entry.size)}
        </h2>
        <span role="status">{note}</span>
        <button type="button" onClick={copy}>
          Copy
        </button>
        <button type="button" onClick={() => save([data as string | Uint8Array<ArrayBuffer>], typeof data === 'string' ? 'message.txt' : 'message.bin')}>
          Save
        </button>
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
      {/* The keyboard scrolls it. */}
      <pre tabIndex={0}>
        {visible(text)}
      </pre>
      {isCut && <p class="note">The beginning is shown. Copy and Save include everything.</p>}
    </section>
  );
}

/** Each entry is encoded on its own, so that no string grows to the size of all. */
function download(view: View): void {
  const parts: string[] = [];
  for (const { time, direction, author, kind, data } of view.entries()) {
    const payload = typeof data === 'string' ? { text: data } : { base64: base64(data) };
    parts.push(parts.length === 0 ? '[\n' : ',\n', JSON.stringify({ time: new Date(time).toISOString(), direction, author, kind, ...payload }));
  }
  parts.push(parts.length === 0 ? '[]\n' : '\n]\n');
  save(parts, 'messages.json', 'application/json');
}

function save(parts: BlobPart[], name: string, type = 'application/octet-stream'): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob(parts, { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

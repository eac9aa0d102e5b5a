/** Connect: WebSockets to any URL, one in each tab. */

import { useEffect, useRef, useState } from 'preact/hooks';
import { closeCode, mayClose } from './close_codes';
import { bytes, count, fromHex, jsonError, millis, pretty, visible } from './format';
import { Messages } from './messages';
import { Plot } from './plot';
import { Session, type State } from './session';
import { useStore } from './store';

const own = `${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}`;
const sessions: Session[] = [new Session(`${own}/echo`)];
let current = sessions[0]!;

export function Connect() {
  const [, render] = useState(0);
  const show = (session: Session) => {
    current = session;
    render((version) => version + 1);
  };
  const add = () => {
    const session = new Session(current.url);
    sessions.push(session);
    show(session);
  };
  const remove = (session: Session) => {
    const index = sessions.indexOf(session);
    session.dispose();
    sessions.splice(index, 1);
    show(session === current ? sessions[Math.max(0, index - 1)]! : current);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const next = sessions[(sessions.indexOf(current) + step + sessions.length) % sessions.length]!;
    show(next);
    document.getElementById(`tab-${next.id}`)?.focus();
  };
  return (
    <>
      <div class="tabs">
        <div role="tablist" aria-label="Connections" onKeyDown={onKeyDown}>
          {sessions.map((session) => (
            <Tab key={session.id} session={session} isCurrent={session === current} onShow={() => show(session)} />
          ))}
        </div>
        <button type="button" onClick={add}>
          New tab
        </button>
        {sessions.length > 1 && (
          <button type="button" onClick={() => remove(current)}>
            Close tab
          </button>
        )}
      </div>
      <div role="tabpanel" id="panel" aria-labelledby={`tab-${current.id}`} class="columns" key={current.id}>
        <Panel session={current} />
      </div>
    </>
  );
}

function Tab({ session, isCurrent, onShow }: { session: Session; isCurrent: boolean; onShow: () => void }) {
  useStore(session);
  return (
    <button
      type="button"
      role="tab"
      id={`tab-${session.id}`}
      aria-selected={isCurrent}
      aria-controls="panel"
      tabIndex={isCurrent ? 0 : -1}
      onClick={onShow}
    >
      <i class={`dot ${session.state.kind}`} />
      Connection {session.id}
      <span class="hidden">, {session.state.kind}</span>
    </button>
  );
}

function Panel({ session }: { session: Session }) {
  useStore(session);
  return (
    <>
      <div class="side">
        <Address session={session} />
        <Composer session={session} />
        <RoundTrip session={session} />
        <CloseForm session={session} />
      </div>
      <Messages
        log={session.log}
        empty={session.state.kind === 'open' ? 'Connected. No messages yet: send one.' : 'No messages yet. Connect, then send one.'}
        onClear={() => session.clear()}
      />
    </>
  );
}

function Address({ session }: { session: Session }) {
  const form = useRef<HTMLFormElement>(null);
  const isOpen = session.state.kind === 'open';
  const submit = (event: Event) => {
    event.preventDefault();
    if (session.isBusy) session.close();
    else session.connect();
  };
  // The button that had the focus disconnects from now on; the next thing to do is to write a message. On a phone that would
  // raise the keyboard.
  useEffect(() => {
    if (!isOpen || !form.current?.contains(document.activeElement) || !matchMedia('(pointer: fine)').matches) return;
    document.querySelector<HTMLTextAreaElement>('#message')?.focus();
  }, [isOpen]);
  return (
    <form class={session.isBusy ? 'card busy' : 'card'} ref={form} onSubmit={submit} aria-label="Connection">
      <label>
        URL
        <input type="text" inputMode="url" spellcheck={false} autocomplete="off" value={session.url} readOnly={session.isBusy} onInput={(event) => session.set('url', event.currentTarget.value)} />
      </label>
      <label class="optional">
        Subprotocols <span class="note">(optional, separated by commas)</span>
        <input type="text" spellcheck={false} autocomplete="off" value={session.protocols} readOnly={session.isBusy} onInput={(event) => session.set('protocols', event.currentTarget.value)} />
      </label>
      <label class="check">
        <input type="checkbox" checked={session.reconnects} onChange={(event) => session.set('reconnects', event.currentTarget.checked)} />
        Reconnect when the connection is lost
      </label>
      <button type="submit" class={session.isBusy ? '' : 'primary'} disabled={session.state.kind === 'closing'}>
        {session.isBusy ? 'Disconnect' : 'Connect'}
      </button>
      <p role="status" class={`state ${session.state.kind}`}>
        <Status state={session.state} />
      </p>
      {session.received.messages + session.sent.messages > 0 && (
        <p class="note counts">
          Sent {count(session.sent.messages)} ({bytes(session.sent.size)}), received {count(session.received.messages)} ({bytes(session.received.size)})
        </p>
      )}
    </form>
  );
}

function Status({ state }: { state: State }) {
  switch (state.kind) {
    case 'idle':
      return <>Not connected</>;
    case 'connecting':
      return <>Connecting{state.attempt > 0 ? `, attempt ${state.attempt + 1}` : ''}…</>;
    case 'open':
      return (
        <>
          Connected{state.protocol && `, subprotocol ${state.protocol}`}
          {state.extensions && `, ${state.extensions.split(';')[0]}`}
        </>
      );
    case 'closing':
      return <>Closing…</>;
    case 'closed':
      return (
        <>
          {state.wasOpen ? `Closed with ${state.code}: ${closeCode(state.code)}` : 'Not connected: the attempt failed'}
          {state.reason && <q>{visible(state.reason)}</q>}
          {state.detail && <span class="line">{visible(state.detail)}</span>}
          {state.retryAt !== null && <span class="line">Reconnecting shortly…</span>}
        </>
      );
  }
}

type Mode = 'text' | 'json' | 'hex' | 'file';
const MODES: [Mode, string][] = [
  ['text', 'Text'],
  ['json', 'JSON'],
  ['hex', 'Hex'],
  ['file', 'File'],
];
const FILE_MAX = 64 * 1_048_576;

function Composer({ session }: { session: Session }) {
  const [mode, setMode] = useState<Mode>('text');
  const [text, setText] = useState('');
  const [file, setFile] = useState<File | null>(null);
  const [isText, setIsText] = useState(false);
  const [error, setError] = useState('');
  const isOpen = session.state.kind === 'open';
  const problem =
    mode === 'json' && text !== '' ? jsonError(text) : mode === 'hex' && fromHex(text) === null ? 'Hex digits come in pairs: 00 ff 7f' : null;
  const pick = (picked: File | undefined) => {
    setFile(picked ?? null);
    setError(picked && picked.size > FILE_MAX ? `The file is larger than ${bytes(FILE_MAX)}.` : '');
  };
  const submit = async (event: Event) => {
    event.preventDefault();
    if (!isOpen || problem) return;
    if (mode === 'file') {
      if (!file || file.size > FILE_MAX) return;
      try {
        const data = new Uint8Array(await file.arrayBuffer());
        setError(session.send(isText ? new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(data) : data) ?? '');
      } catch (failure) {
        setError(failure instanceof TypeError ? 'The file is not UTF-8: send it as binary.' : 'The file cannot be read.');
      }
      return;
    }
    setError(session.send(mode === 'hex' ? fromHex(text)! : text) ?? '');
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) void submit(event);
  };
  return (
    <form class="card" onSubmit={submit} aria-label="Message to send">
      <fieldset class="modes">
        <legend class="hidden">Type of message</legend>
        {MODES.map(([value, name]) => (
          <label key={value}>
            <input type="radio" name="mode" checked={mode === value} onChange={() => setMode(value)} />
            <span>{name}</span>
          </label>
        ))}
      </fieldset>
      {mode === 'file' && (
        <label class="check">
          <input type="checkbox" checked={isText} onChange={(event) => setIsText(event.currentTarget.checked)} />
          Send the file as text
        </label>
      )}
      {mode === 'file' ? (
        <label
          class="drop"
          onDragOver={(event) => event.preventDefault()}
          onDrop={(event) => {
            event.preventDefault();
            pick(event.dataTransfer?.files[0]);
          }}
        >
          {file ? `${file.name}, ${bytes(file.size)}` : 'Drop a file here, or choose one'}
          <input type="file" onChange={(event) => pick(event.currentTarget.files?.[0])} />
        </label>
      ) : (
        <label>
          <span class="hidden">Message</span>
          <textarea
            id="message"
            rows={4}
            spellcheck={false}
            value={text}
            placeholder={{ text: 'Message', json: '{"hello": "world"}', hex: '00 ff 7f' }[mode]}
            aria-invalid={problem !== null}
            aria-describedby="problem"
            onInput={(event) => setText(event.currentTarget.value)}
            onKeyDown={onKeyDown}
          />
        </label>
      )}
      <p id="problem" role="status" class="problem">
        {problem ?? error}
      </p>
      <div class="actions">
        <button type="submit" class="primary" disabled={!isOpen || problem !== null || (mode === 'file' && !file)}>
          Send
        </button>
        {mode === 'json' && (
          <button type="button" disabled={problem !== null} onClick={() => setText(pretty(text))}>
            Format
          </button>
        )}
        {isOpen ? <span class="note keys">Ctrl + Enter sends</span> : <span class="note">Connect to send</span>}
      </div>
    </form>
  );
}

function RoundTrip({ session }: { session: Session }) {
  const now = session.rtts.percentiles();
  return (
    <section class="card" aria-label="Round-trip time">
      <label class="check">
        <input type="checkbox" checked={session.isMeasuring} onChange={(event) => session.measure(event.currentTarget.checked)} />
        Measure the round-trip time by echo
      </label>
      {session.isMeasuring &&
        (now ? (
          <Plot label="Round-trip time" series={session.rttSeries} names={['p50', 'p90', 'p99']} format={millis} />
        ) : (
          <p class="empty">{session.state.kind === 'open' ? 'Waiting for the first echo. The server must send messages back.' : 'Connect to measure.'}</p>
        ))}
    </section>
  );
}

function CloseForm({ session }: { session: Session }) {
  const [code, setCode] = useState('1000');
  const [reason, setReason] = useState('');
  const [error, setError] = useState('');
  const details = useRef<HTMLDetailsElement>(null);
  const number = Number(code);
  const isAllowed = mayClose(number) && new TextEncoder().encode(reason).length <= 123;
  useEffect(() => setError(''), [code, reason]);
  const submit = (event: Event) => {
    event.preventDefault();
    if (isAllowed) setError(session.close(number, reason) ?? '');
  };
  return (
    <details class="card" ref={details}>
      <summary>Close with a code</summary>
      <form onSubmit={submit} aria-label="Close">
        <label>
          Code
          <input type="number" min={1000} max={4999} value={code} onInput={(event) => setCode(event.currentTarget.value)} />
        </label>
        <label>
          Reason
          <input type="text" value={reason} onInput={(event) => setReason(event.currentTarget.value)} />
        </label>
        <p class="problem" role="status">
          {error || (isAllowed ? '' : 'A browser sends 1000 or 3000 to 4999, and a reason of 123 bytes.')}
        </p>
        <button type="submit" disabled={session.state.kind !== 'open' || !isAllowed}>
          Close
        </button>
      </form>
    </details>
  );
}

import assert from 'node:assert/strict';
import test from 'node:test';
import { closeCode, mayClose } from '../src/close_codes';
import { base64, bytes, fromHex, hexDump, jsonError, jsonText, millis, parseJson, pretty, preview, toHex } from '../src/format';
import { Latencies, Probes, sentAt } from '../src/latency';
import { EVERYTHING, MessageLog, View } from '../src/log';
import { Members } from '../src/members';
import { Metrics } from '../src/metrics';
import { Series } from '../src/series';
import { urlProblem } from '../src/session';

test('hex digits are read and written', () => {
  assert.deepEqual(fromHex('00 ff:7F,0x10'), new Uint8Array([0, 255, 127, 16]));
  assert.deepEqual(fromHex(''), new Uint8Array());
  assert.equal(fromHex('0'), null);
  assert.equal(fromHex('zz'), null);
  assert.equal(toHex(new Uint8Array([0, 255, 16]), 2), '00 ff …');
  assert.equal(hexDump(new TextEncoder().encode('wireloom\n')), `00000000  77 69 72 65 6c 6f 6f 6d 0a${' '.repeat(21)}  wireloom.`);
  assert.equal(base64(new Uint8Array(100_000)).length, 133_336);
});

test('sizes have a unit', () => {
  assert.deepEqual([0, 999, 1000, 12_345, 999_600, 16_777_216].map(bytes), ['0 B', '999 B', '1.0 kB', '12 kB', '1.0 MB', '17 MB']);
  assert.deepEqual([0, 0.04, 9.96, 1234].map(millis), ['0 ms', '0.0 ms', '10 ms', '1,234 ms']);
});

test('JSON is validated and formatted, and other text is left alone', () => {
  assert.equal(jsonError('{"a": 1}'), null);
  assert.notEqual(jsonError('{'), null);
  assert.equal(pretty('{"a":[1]}'), '{\n  "a": [\n    1\n  ]\n}');
  assert.equal(pretty('{no'), '{no');
  for (const value of [{}, [], [[]], { a: {}, b: [1, { c: null }, ''], 'd"]\\': '\u20ac{},:\\"' }, [true, -1.5e-7, 'x']]) {
    assert.equal(pretty(JSON.stringify(value)), JSON.stringify(value, null, 2));
  }
  // Only the whitespace changes.
  assert.equal(pretty('[12345678901234567890, 1.0,\t1e400, "\\u00e9", {"a":1,"a":2}]').replace(/\s/g, ''), '[12345678901234567890,1.0,1e400,"\\u00e9",{"a":1,"a":2}]');
  const deep = pretty('['.repeat(5000) + '0' + ']'.repeat(5000));
  assert.ok(deep.length < 1_000_000, String(deep.length));
  assert.equal(preview('a\nb\r\n\u0000'), 'a↵b↵␀');
  assert.equal(preview('x'.repeat(300)).length, 241);
  // They would make it read "alive".
  assert.equal(preview('a\u202eevil\u009b'), 'a\\u202eevil\\u009b');
});

test('data that is nested too deeply is not shown', () => {
  assert.equal(jsonText({ a: [1] }), '{"a":[1]}');
  assert.equal(jsonText(undefined), '');
  for (const text of ['{"n":12345678901234567890,"list":[1.0,1e400,-0,7]}', '12345678901234567890', '"12345678901234567890"']) {
    assert.equal(jsonText(parseJson(text)), JSON.rawJSON ? text : jsonText(JSON.parse(text)));
  }
  assert.throws(() => parseJson('{'), SyntaxError);
  assert.match(jsonText(parseJson('['.repeat(30_000) + ']'.repeat(30_000))), /too deeply/);
});

test('close codes have names', () => {
  assert.match(closeCode(1009), /too big/);
  assert.match(closeCode(4321), /application/);
  assert.deepEqual([999, 1000, 1001, 2999, 3000, 4999, 5000].map(mayClose), [false, true, false, false, true, true, false]);
});

test('percentiles are those of the newest samples', () => {
  const latencies = new Latencies(100);
  assert.equal(latencies.percentiles(), null);
  for (let sample = 1; sample <= 1100; sample++) latencies.add(sample);
  assert.deepEqual(latencies.percentiles(), { p50: 1050, p90: 1090, p99: 1099, max: 1100 });
});

test('an echo has the time when it was sent', () => {
  const echo = (time: number) => {
    const data = new ArrayBuffer(16);
    new DataView(data).setFloat64(0, time);
    return sentAt(data, 1000);
  };
  assert.deepEqual([0, 12.5, 1000].map(echo), [0, 12.5, 1000]);
  assert.deepEqual([NaN, Infinity, -Infinity, -1, 1000.5].map(echo), [null, null, null, null, null]);
  assert.equal(sentAt('12345678', 1000), null);
  assert.equal(sentAt(new ArrayBuffer(7), 1000), null);
});

test('the log is bounded in entries and in size', () => {
  const many = new MessageLog(2000);
  for (let index = 0; index < 10_000; index++) many.push('received', String(index));
  assert.ok(many.next - many.first <= 2000);
  assert.equal(many.get(9999)?.data, '9999');
  assert.equal(many.get(many.first - 1), undefined);
  const large = new MessageLog(2000, 100);
  for (let index = 0; index < 10; index++) large.push('sent', new Uint8Array(30));
  assert.equal(large.next - large.first, 3);
  assert.equal(large.push('sent', new Uint8Array(500)), 500);
  assert.equal(large.next - large.first, 1);
  assert.equal(large.push('sent', 'gr\u00fc\u00dfe'), 7);
});

test('a log that is full removes entries in blocks', () => {
  const log = new MessageLog(1_000_000, 1_600);
  let removals = 0;
  for (let index = 0; index < 10_000; index++) {
    const { first } = log;
    log.push('received', 'x');
    if (log.first !== first) removals++;
  }
  assert.ok(removals <= 100, String(removals));
  assert.ok(log.next - log.first >= 1_500);
});

test('probes that are lost do not end the measurement', () => {
  const probes = new Probes(1);
  const texts = Array.from({ length: 1000 }, (_, at) => probes.next(at));
  assert.equal(new Set(texts).size, 1000);
  assert.equal(probes.answered(texts[999]!, 1001), 2);
  assert.equal(probes.answered(texts[999]!, 1001), null);
  assert.equal(probes.answered(texts[0]!, 1001), null);
  assert.equal(probes.answered('other', 1001), null);
});

test('a view has the entries that pass its filter, also after old ones were removed', () => {
  const log = new MessageLog(5000);
  const sent = new View(log, { ...EVERYTHING, direction: 'sent' });
  const found = new View(log, { ...EVERYTHING, search: 'NUMBER 7' });
  for (let index = 0; index < 50_000; index++) {
    log.push(index % 2 ? 'sent' : 'received', `number ${index}`);
    if (index % 100 === 0) {
      sent.update();
      found.update();
    }
  }
  sent.update();
  const fresh = new View(log, sent.filter);
  fresh.update();
  assert.equal(sent.length, fresh.length);
  assert.equal(sent.at(0)?.id, fresh.at(0)?.id);
  assert.equal(sent.at(sent.length - 1)?.data, 'number 49999');
  assert.equal(found.length, 0);
  log.push('sent', 'Number 7');
  log.push('sent', new Uint8Array([0x6e]));
  found.update();
  assert.equal(found.length, 1);
  const binary = new View(log, { direction: 'all', kind: 'binary', search: '6E' });
  binary.update();
  assert.equal(binary.length, 1);
});

test('a paused view ends where it was paused', () => {
  const log = new MessageLog();
  const view = new View(log, EVERYTHING);
  for (let index = 0; index < 10; index++) log.push('sent', 'x');
  view.update(6);
  assert.equal(view.length, 6);
  view.update();
  assert.equal(view.length, 10);
});

test('a view passes over entries that were dropped since its last update', () => {
  const log = new MessageLog(10, 100);
  const view = new View(log, EVERYTHING);
  for (let index = 0; index < 4; index++) log.push('sent', 'x'.repeat(25));
  view.update();
  log.push('received', 'y'.repeat(50));
  assert.deepEqual([...view.entries()].map(({ id }) => id), [2, 3]);
});

test('members beyond those that are listed are counted', () => {
  const info = (client: string) => ({ client, user: '' });
  const members = new Members(2);
  members.replace(['a', 'b', 'c'].map(info));
  assert.deepEqual([members.total, members.list().length], [3, 2]);
  members.joined(info('d'));
  members.left(info('c'));
  members.left(info('d'));
  assert.equal(members.total, 2);
  members.left(info('a'));
  members.left(info('x'));
  assert.deepEqual([members.total, members.list()], [1, [info('b')]]);
});

test('metrics are parsed with their labels', () => {
  const metrics = Metrics.parse('# HELP a b\na_total{direction="in",name="q\\"u}o"} 3\na_total{direction="out"} 4\nb 1.5e3\nbad line here\n');
  assert.equal(metrics.sum('a_total'), 7);
  assert.equal(metrics.sum('a_total', { direction: 'in' }), 3);
  assert.equal(metrics.all('a_total')[0]?.labels.name, 'q"u}o');
  assert.equal(metrics.sum('b'), 1500);
  assert.equal(metrics.sum('c'), null);
});

test('a series keeps the newest values', () => {
  const series = new Series(2, 3);
  for (let time = 0; time < 5; time++) series.add(time, [time, null]);
  assert.deepEqual([series.times, series.columns], [[2, 3, 4], [[2, 3, 4], [null, null, null]]]);
});

test('texts that are no URL of a WebSocket are named', () => {
  for (const url of ['ws://a', ' wss://a/b?c ', 'http://a', 'WS://a']) assert.equal(urlProblem(url), null, url);
  for (const url of ['', ' ', '/echo', 'echo', 'localhost:8080', '//host/']) assert.notEqual(urlProblem(url), null, url);
});

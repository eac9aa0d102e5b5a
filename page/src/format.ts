/** Conversions between bytes, numbers and the text that the page shows. */

/** Messages longer than this are not parsed, formatted or shown as a whole. */
export const SHOWN_MAX = 65_536;

export function bytes(count: number): string {
  if (count < 1000) return `${Math.round(count)} B`;
  const units = ['kB', 'MB', 'GB', 'TB'];
  let unit = -1;
  do {
    count /= 1000;
    unit++;
  } while (count >= 999.5 && unit < units.length - 1);
  return `${count < 9.95 ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}

const encoder = new TextEncoder();

/** Bytes of a text as UTF-8. */
export function utf8Length(text: string): number {
  return encoder.encode(text).length;
}

const grouped = new Intl.NumberFormat('en');

export function count(value: number): string {
  return grouped.format(Math.round(value));
}

export function messageCount(value: number): string {
  return `${count(value)} ${value === 1 ? 'message' : 'messages'}`;
}

export function millis(value: number): string {
  if (!Number.isFinite(value)) return '–';
  if (value === 0) return '0 ms';
  return value < 9.95 ? `${value.toFixed(1)} ms` : `${count(value)} ms`;
}

/** Local time with milliseconds. */
export function clock(time: number): string {
  const date = new Date(time);
  const two = (value: number) => String(value).padStart(2, '0');
  const milli = String(date.getMilliseconds()).padStart(3, '0');
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${milli}`;
}

export function toHex(data: Uint8Array, max = data.length): string {
  const digits: string[] = [];
  for (const byte of data.subarray(0, max)) digits.push(byte.toString(16).padStart(2, '0'));
  return digits.join(' ') + (data.length > max ? ' …' : '');
}

/** Sixteen bytes a line: offset, hex digits, printable ASCII. */
export function hexDump(data: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < data.length; at += 16) {
    const line = data.subarray(at, at + 16);
    const ascii = Array.from(line, (byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : '.')).join('');
    lines.push(`${at.toString(16).padStart(8, '0')}  ${toHex(line).padEnd(47)}  ${ascii}`);
  }
  return lines.join('\n');
}

/** Reads hex digits; spaces, commas, colons and `0x` between them are ignored. */
export function fromHex(text: string): Uint8Array<ArrayBuffer> | null {
  const digits = text.replace(/0x|[\s,:]/gi, '');
  if (digits.length % 2 !== 0 || !/^[0-9a-f]*$/i.test(digits)) return null;
  const data = new Uint8Array(digits.length / 2);
  for (let index = 0; index < data.length; index++) data[index] = parseInt(digits.slice(2 * index, 2 * index + 2), 16);
  return data;
}

export function base64(data: Uint8Array): string {
  let text = '';
  for (let at = 0; at < data.length; at += 32_768) text += String.fromCharCode(...data.subarray(at, at + 32_768));
  return btoa(text);
}

/** The error of a JSON text, or null. Texts longer than 1 MiB are not checked. */
export function jsonError(text: string): string | null {
  if (text.length > 1_048_576) return null;
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    return (error as Error).message;
  }
}

/** Not in TypeScript's library yet. */
declare global {
  interface JSON {
    rawJSON?(text: string): unknown;
  }
}

/**
 * Reads JSON whose numbers `jsonText` writes as they were, also those that JavaScript cannot hold. Without `JSON.rawJSON` (Chrome before
 * 114, Firefox before 135, Safari before 18.4) these are rounded.
 */
export function parseJson(text: string): unknown {
  const exact = (_: string, value: unknown, context?: { source?: string }) =>
    typeof value === 'number' && context?.source !== undefined && context.source !== String(value) ? JSON.rawJSON!(context.source) : value;
  try {
    return JSON.parse(text, JSON.rawJSON && exact);
  } catch (error) {
    // A browser reads JSON that is nested more deeply than it can visit.
    if (error instanceof SyntaxError) throw error;
    return JSON.parse(text);
  }
}

/** Data of others as JSON text, or that there is none: a browser reads JSON that is nested more deeply than it can write. */
export function jsonText(data: unknown): string {
  try {
    return JSON.stringify(data) ?? '';
  } catch {
    return 'This is nested too deeply to be shown.';
  }
}

/** Levels of JSON that are indented; deeper ones are indented as the last of these, so that no text grows to many times its size. */
const INDENTED_MAX = 32;

/** JSON with line breaks, and any other text as it is. Only whitespace changes: numbers keep digits that JavaScript cannot hold. */
export function pretty(text: string): string {
  if (text.length > SHOWN_MAX || !/^\s*[[{]/.test(text) || jsonError(text) !== null) return text;
  const parts: string[] = [];
  let depth = 0;
  let isEmpty = false;
  const line = () => `\n${'  '.repeat(Math.min(depth, INDENTED_MAX))}`;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s"[\]{},:]+/g)) {
    if (token === ']' || token === '}') {
      depth--;
      parts.push(isEmpty ? token : line() + token);
      isEmpty = false;
      continue;
    }
    if (isEmpty) parts.push(line());
    isEmpty = token === '[' || token === '{';
    if (isEmpty) depth++;
    parts.push(token === ':' ? ': ' : token === ',' ? token + line() : token);
  }
  return parts.join('');
}

/**
 * A text with the control characters beyond ASCII as their codes, and those that reorder the text around them: with one of these a message
 * looks like another one.
 */
export function visible(text: string): string {
  // oxlint-disable-next-line no-control-regex -- they are what it replaces
  return text.replace(/[\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

/** One line for a list: control characters are shown as pictures (U+2400 and following). */
export function preview(data: string | Uint8Array, max = 240): string {
  if (typeof data !== 'string') return toHex(data, max / 3);
  const cut = data
    .slice(0, max)
    // Many fonts lack the symbol for a line feed.
    .replace(/\r?\n/g, '↵')
    // oxlint-disable-next-line no-control-regex -- they are what it replaces
    .replace(/[\u0000-\u001f]/g, (char) => String.fromCharCode(0x2400 + char.charCodeAt(0)));
  return visible(data.length > max ? `${cut}…` : cut);
}

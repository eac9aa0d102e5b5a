/** Close codes in words (RFC 6455 §7.4 and the IANA registry). */

const NAMES: Record<number, string> = {
  1000: 'Normal closure',
  1001: 'Going away: the server shuts down or the page is left',
  1002: 'Protocol error',
  1003: 'Unsupported data: this kind of message is not accepted',
  1005: 'Closed without a code',
  1006: 'Connection lost without a closing handshake',
  1007: 'Invalid payload: the text is not UTF-8 or does not fit its type',
  1008: 'Policy violation',
  1009: 'Message too big',
  1010: 'A required extension was not negotiated',
  1011: 'Internal error of the server',
  1012: 'The server restarts',
  1013: 'Try again later',
  1014: 'Bad gateway',
  1015: 'TLS handshake failed',
};

export function closeCode(code: number): string {
  const name = NAMES[code];
  if (name) return name;
  if (code >= 3000 && code < 4000) return 'Code registered by a library or framework';
  if (code >= 4000 && code < 5000) return 'Code of the application';
  return 'Reserved code';
}

/** Whether a browser may send the code. */
export function mayClose(code: number): boolean {
  return code === 1000 || (code >= 3000 && code <= 4999);
}

/**
 * Whether the server of this page answers. A frame asks, because browsers report each failed fetch and WebSocket on the console,
 * where a page cannot hold it back.
 */

const TIMEOUT_MS = 5000;
const INTERVAL_MS = 2000;

/** The text of /livez, also while the engine fails. A proxy in front of no server has another page. */
const ANSWER = /^ok$/;

export function isReachable(): Promise<boolean> {
  return new Promise((resolve) => {
    const frame = document.createElement('iframe');
    frame.hidden = true;
    frame.title = 'Asks whether the server answers';
    const settle = (answers: boolean) => {
      clearTimeout(timer);
      frame.remove();
      resolve(answers);
    };
    const timer = setTimeout(() => settle(false), TIMEOUT_MS);
    // The browser's own page of an error has another origin, and so no document here.
    frame.onload = () => settle(ANSWER.test(frame.contentDocument?.body?.textContent?.trim() ?? ''));
    frame.src = `/livez?${performance.now()}`;
    document.body.append(frame);
  });
}

/** Waits until the server answers; false if the signal was aborted before. */
export async function untilReachable(signal: AbortSignal): Promise<boolean> {
  while (!signal.aborted) {
    if (await isReachable()) return !signal.aborted;
    // A random time: many pages may have lost the same server.
    await new Promise((resolve) => setTimeout(resolve, INTERVAL_MS * (0.5 + Math.random())));
  }
  return false;
}

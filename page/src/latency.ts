/** Percentiles of the newest latencies. */

export interface Percentiles {
  p50: number;
  p90: number;
  p99: number;
  max: number;
}

/** When a message was sent, of which this is the echo: the time is in its first eight bytes. `null` if this is no echo. */
export function sentAt(data: string | ArrayBuffer, now: number): number | null {
  const time = typeof data !== 'string' && data.byteLength >= 8 ? new DataView(data).getFloat64(0) : NaN;
  return time >= 0 && time <= now ? time : null;
}

export class Latencies {
  private samples: number[] = [];
  private next = 0;
  total = 0;

  /** Keeps the newest `window` samples. */
  constructor(private readonly window = 1000) {}

  add(sample: number): void {
    this.total++;
    this.samples[this.next] = sample;
    this.next = (this.next + 1) % this.window;
  }

  clear(): void {
    this.samples = [];
    this.next = 0;
  }

  percentiles(): Percentiles | null {
    if (this.samples.length === 0) return null;
    const sorted = Float64Array.from(this.samples).sort();
    const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)]!;
    return { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: sorted[sorted.length - 1]! };
  }
}

/** A probe that is not answered within 20 s is lost. */
const PROBES_MAX = 100;

/** Probes of a connection that wait for their echo. The oldest are given up where the server does not echo. */
export class Probes {
  private count = 0;
  private readonly sent = new Map<string, number>();

  constructor(private readonly of: number) {}

  /** The text of the next probe. */
  next(now: number): string {
    for (const oldest of this.sent.keys()) {
      if (this.sent.size < PROBES_MAX) break;
      this.sent.delete(oldest);
    }
    const text = JSON.stringify({ probe: ++this.count, of: this.of });
    this.sent.set(text, now);
    return text;
  }

  /** The round-trip time of the probe that this text echoes, or null. */
  answered(text: string, now: number): number | null {
    const sent = this.sent.get(text);
    this.sent.delete(text);
    return sent === undefined ? null : now - sent;
  }

  clear(): void {
    this.sent.clear();
  }
}

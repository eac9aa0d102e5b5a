/** The text format of Prometheus, as far as `/metrics` uses it. */

export interface Sample {
  labels: Record<string, string>;
  value: number;
}

export class Metrics {
  private readonly samples = new Map<string, Sample[]>();

  static parse(text: string): Metrics {
    const metrics = new Metrics();
    for (const line of text.split('\n')) {
      const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
      if (!match) continue;
      const labels: Record<string, string> = {};
      for (const [, name, value] of (match[2] ?? '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
        labels[name!] = value!.replace(/\\(.)/g, (_, char: string) => (char === 'n' ? '\n' : char));
      }
      const list = metrics.samples.get(match[1]!) ?? [];
      list.push({ labels, value: Number(match[3]) });
      metrics.samples.set(match[1]!, list);
    }
    return metrics;
  }

  all(name: string): Sample[] {
    return this.samples.get(name) ?? [];
  }

  /** The sum of the samples that have these labels; null if there is none. */
  sum(name: string, labels: Record<string, string> = {}): number | null {
    const found = this.all(name).filter((sample) => Object.entries(labels).every(([key, value]) => sample.labels[key] === value));
    return found.length > 0 ? found.reduce((sum, sample) => sum + sample.value, 0) : null;
  }
}

export async function fetchMetrics(): Promise<Metrics> {
  const response = await fetch('/metrics', { cache: 'no-store', signal: AbortSignal.timeout(5000) });
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  return Metrics.parse(await response.text());
}

/** What this page may see of the server. */
export interface Access {
  /** The live state, at `/live`. */
  allowed: boolean;
  /** `/metrics`. */
  metrics: boolean;
  /** The paths of the admin page. */
  admin: boolean;
}

export async function fetchAccess(): Promise<Access> {
  const response = await fetch('/live', { cache: 'no-store', signal: AbortSignal.timeout(5000) });
  return (await response.json()) as Access;
}

// Bundles the page into the folder that is the argument: page.html, page.js and page.css.

import { copyFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';

const out = process.argv[2];
const COMPRESSED_MAX = 100_000;
/** The packages whose code is in the bundle. Their licences ask for their text in every copy. */
const vendored = ['preact', 'uplot', 'centrifuge', 'events'];

const licences = await Promise.all(
  vendored.map(async (name) => {
    const { version, license } = JSON.parse(await readFile(`node_modules/${name}/package.json`, 'utf8'));
    const text = (await readFile(`node_modules/${name}/LICENSE`, 'utf8')).trim().replace(/\r/g, '').replaceAll('*/', '* /');
    return `${name} ${version} (${license})\n\n${text}`;
  }),
);

await mkdir(out, { recursive: true });
const { metafile } = await build({
  entryPoints: { page: 'src/main.tsx' },
  outdir: out,
  bundle: true,
  minify: true,
  format: 'esm',
  target: ['chrome120', 'firefox115', 'safari17'],
  jsx: 'automatic',
  jsxImportSource: 'preact',
  legalComments: 'none',
  banner: { js: `/*!\nBuilt from page/ by page/build. It includes:\n\n${licences.join('\n\n---\n\n')}\n*/` },
  metafile: true,
});
const bundled = new Set(Object.keys(metafile.inputs).flatMap((path) => /^node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1] ?? []));
for (const name of bundled) if (!vendored.includes(name)) throw new Error(`${name} is bundled without its licence`);

const styles = [await readFile('node_modules/uplot/dist/uPlot.min.css', 'utf8'), await readFile('src/style.css', 'utf8')].join('\n');
const { outputFiles } = await build({ stdin: { contents: styles, loader: 'css' }, minify: true, write: false });
await writeFile(`${out}/page.css`, outputFiles[0].contents);
await copyFile('src/page.html', `${out}/page.html`);

let compressed = 0;
for (const name of ['page.html', 'page.js', 'page.css']) compressed += gzipSync(await readFile(`${out}/${name}`), { level: 9 }).length;
console.log(`${compressed} bytes compressed`);
if (compressed > COMPRESSED_MAX) throw new Error(`more than ${COMPRESSED_MAX} bytes compressed`);

// The documentation site: `make docs` builds it into docs/.vitepress/dist. VitePress fails on a dead link to a page and on a
// missing image; repositoryLinks fails on a dead link to another file. e2e/site.test.mjs checks the anchors.
import { existsSync, readFileSync, statSync } from 'node:fs'
import { dirname, relative, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { renderMermaidSVG } from 'beautiful-mermaid'
import { defineConfig } from 'vitepress'
import { sidebar } from './sidebar.mjs'

const docs = fileURLToPath(new URL('..', import.meta.url)).replace(/\/$/, '')
const root = resolve(docs, '..')
const repository = 'https://github.com/trapeze-run/trapeze'

// repositoryLinks points links to files that are not pages of the site, such as ../runner/doc.go, to the repository.
function repositoryLinks(md) {
  md.core.ruler.push('repository-links', ({ tokens, env }) => {
    for (const link of tokens.flatMap((token) => token.children ?? []).filter((token) => token.type === 'link_open')) {
      const [path, fragment] = link.attrGet('href').split('#')
      if (path === '' || /^([a-z]+:|\/)/.test(path)) continue
      const file = resolve(dirname(env.path), decodeURI(path))
      if (file.startsWith(docs + '/') && /\.(md|html)$/.test(file)) continue // VitePress checks it
      if (!existsSync(file)) throw new Error(`${env.relativePath}: dead link ${path}`)
      const kind = statSync(file).isDirectory() ? 'tree' : 'blob'
      link.attrSet('href', `${repository}/${kind}/main/${relative(root, file)}${fragment ? '#' + fragment : ''}`)
    }
  })
}

// mermaid draws Mermaid diagrams at build time, in the colours of the page.
function mermaid(md) {
  const fence = md.renderer.rules.fence
  md.renderer.rules.fence = (tokens, index, ...rest) => {
    if (tokens[index].info.trim() !== 'mermaid') return fence(tokens, index, ...rest)
    const svg = renderMermaidSVG(tokens[index].content, { bg: 'var(--vp-c-bg)', fg: 'var(--vp-c-text-1)', muted: 'var(--vp-c-text-2)', accent: 'var(--vp-c-brand-1)', transparent: true })
      .replace(/^\s*@import .*$/m, '') // a font from a foreign server
    return `<div class="picture" v-html="${md.utils.escapeHtml(JSON.stringify(svg))}"></div>`
  }
}

export default defineConfig({
  title: 'Trapeze',
  description: 'Background jobs and pipelines inside your Go service, on PostgreSQL',
  lang: 'en',
  base: process.env.DOCS_BASE ?? '/',
  head: [
    ['link', { rel: 'icon', href: 'data:image/svg+xml,' + encodeURIComponent(readFileSync(`${root}/api/ui/static/favicon.svg`)) }],
    ['style', {}, '.picture,.vp-doc pre{margin:16px 0;overflow-x:auto}.picture svg{max-width:none}.vp-doc :is(p,li,h1,h2,h3){overflow-wrap:anywhere}'],
  ],
  markdown: {
    attrs: { disable: true }, // braces are text
    // The anchors of GitHub, so that a link to a heading works on both.
    anchor: { slugify: (text) => text.trim().toLowerCase().replace(/[^\p{L}\p{N}\p{M}_\- ]/gu, '').replaceAll(' ', '-') },
    config: (md) => { repositoryLinks(md); mermaid(md) },
  },
  themeConfig: {
    nav: [
      { text: 'Quick start', link: '/quick-start' },
      { text: 'Guides', link: '/embedding' },
      { text: 'Reference', link: '/reference' },
    ],
    sidebar,
    outline: [2, 3],
    search: { provider: 'local' },
    socialLinks: [{ icon: 'github', link: repository }],
    editLink: { pattern: `${repository}/edit/main/docs/:path` },
  },
})

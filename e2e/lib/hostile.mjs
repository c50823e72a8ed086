// Texts that would run scripts or break the markup if a page did not escape them.
export const hostile = [
  `<script>window.xss = "script"</script>`,
  `<img src=x onerror="window.xss='img'">`,
  `"><svg onload="window.xss='svg'"><a href="javascript:window.xss='href'">x</a>`,
  `' autofocus onfocus='window.xss="focus"' x='`,
  `</pre></td></table></script><iframe srcdoc="<script>parent.xss='frame'</script>"></iframe>`,
  `javascript:window.xss='address'//`,
  `{{.Visitor}} {{printf "%s" .}} \${window.xss='literal'}`,
  `<base href="https://example.invalid/"><meta http-equiv="refresh" content="0;url=https://example.invalid/">`,
  `<style>*{display:none!important}</style><link rel=stylesheet href=https://example.invalid/x.css>`,
  `<form action="https://example.invalid/"><button autofocus>Resume</button>`,
  `<div id="ask" data-send="POST admin/workers/pause">x</div>`,
  `\u202Egnp.exe\u202C \u2066left\u2069 \u200B`,
  `&lt;b&gt; &amp;amp; <!-- --> <![CDATA[ ]]>`,
  `${"<b>".repeat(200)}`,
];

"""The page's look: one style sheet, for light and dark, screens and print."""

from __future__ import annotations

_LIGHT = ("#2563c9", "#c8541b", "#12805c", "#9a3fb5", "#a37400", "#c22a63", "#0b7f9b", "#68701c")
_DARK = ("#7aa8ff", "#ff9a5c", "#4fd1a1", "#d391ea", "#e8bf4a", "#ff86ac", "#56cbe6", "#c0c968")


def _palette(colours: tuple[str, ...]) -> str:
    return "".join(f"--c{index}:{colour};" for index, colour in enumerate(colours))


_USES = "".join(f".c{index}{{color:var(--c{index})}}" for index in range(len(_LIGHT)))

STYLE = f"""
:root{{color-scheme:light dark;--ground:#f6f7f9;--card:#fff;--text:#1b2230;--soft:#5b6577;--line:#e1e5ec;
--strong:#8a94a6;--wash:#eef2f8;{_palette(_LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{--ground:#11151c;--card:#1a202a;--text:#e7ebf2;--soft:#a0abbd;
--line:#2b3442;--strong:#69758a;--wash:#222a37;{_palette(_DARK)}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--ground);color:var(--text);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}}
main{{max-width:1240px;margin:0 auto;padding:40px 24px 64px}}
h1{{font-size:30px;line-height:1.2;margin:0 0 6px;letter-spacing:-.01em}}
h2{{font-size:21px;margin:44px 0 4px}}
h3{{font-size:15px;margin:0 0 6px;font-weight:650}}
p{{margin:0 0 14px;max-width:78ch;color:var(--soft)}}
nav{{display:flex;flex-wrap:wrap;gap:6px 18px;margin:14px 0 0;font-size:14px}}
a{{color:var(--c0)}}
.panels{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,520px),1fr));gap:18px}}
.card{{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:18px 20px;min-width:0}}
.card>svg{{display:block;max-width:100%;height:auto}}
svg text{{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;fill:var(--text)}}
svg .tick{{fill:var(--soft);font-size:12px}}
svg .value{{font-variant-numeric:tabular-nums}}
.grid{{stroke:var(--line)}}
.reference{{stroke:var(--strong);stroke-width:1.5;stroke-dasharray:4 3}}
{_USES}
.row .hit{{fill:transparent}}
.row:hover .hit{{fill:var(--wash)}}
polyline{{fill:none;stroke-linejoin:round}}
polyline.hit{{stroke:transparent;stroke-width:12}}
.curve{{stroke:currentColor;stroke-width:2}}
.whisker{{stroke:currentColor;stroke-width:3;stroke-linecap:round;opacity:.45}}
.dot{{fill:currentColor;stroke:var(--card);stroke-width:1.5}}
.dot.hollow{{fill:var(--card);stroke:currentColor;stroke-width:2}}
.bar{{fill:currentColor;stroke:var(--card);stroke-width:1}}
g:hover>.bar{{opacity:.75}}
.legend{{display:flex;flex-wrap:wrap;gap:4px 16px;list-style:none;padding:0;margin:0 0 14px;font-size:14px}}
.legend svg{{vertical-align:-1px;margin-right:7px}}
.legend svg line{{stroke:currentColor;stroke-width:3}}
.legend svg rect{{fill:currentColor}}
.legend span{{color:var(--text)}}
.scroll{{overflow-x:auto}}
table{{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}}
caption{{text-align:left;font-weight:650;padding:0 0 8px}}
th,td{{padding:6px 9px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}}
th{{color:var(--soft);font-weight:600}}
th:first-child,td:first-child{{text-align:left;padding-left:0}}
tbody th{{color:var(--text);font-weight:500}}
tbody tr:hover{{background:var(--wash)}}
td small{{color:var(--soft);font-weight:400}}
td.best{{font-weight:700}}
details{{margin:20px 0 0}}
summary{{cursor:pointer;color:var(--soft)}}
details .scroll{{margin-top:12px}}
.stack{{display:grid;gap:18px}}
@media print{{body{{background:#fff}}.card{{break-inside:avoid}}}}
"""

//! A document of headings, paragraphs, tables and charts that can be written as Markdown (the
//! charts left out) and as one HTML file that needs nothing else.

use std::fmt::Write;

use crate::chart::{self, Chart, escape};

/// A piece of a document. In its texts `code` and **strong** are marked as in Markdown.
#[derive(Debug, Clone)]
pub enum Part {
    /// A heading of the second level.
    Heading(String),
    /// A paragraph.
    Paragraph(String),
    /// A list without numbers.
    List(Vec<String>),
    /// A table.
    Table(Table),
    /// Charts that stand side by side where there is room, with their captions.
    Charts(Vec<(String, Chart)>),
}

/// The first column is text, the others are numbers.
#[derive(Debug, Clone)]
pub struct Table {
    /// The head.
    pub header: Vec<String>,
    /// Rows of as many cells.
    pub rows: Vec<Vec<String>>,
}

/// A document under construction.
#[derive(Debug, Clone)]
pub struct Page {
    /// Its title.
    pub title: String,
    /// Its pieces, in order.
    pub parts: Vec<Part>,
}

impl Page {
    /// An empty document.
    pub fn new(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            parts: Vec::new(),
        }
    }

    /// Adds a heading.
    pub fn heading(&mut self, text: &str) {
        self.parts.push(Part::Heading(text.to_owned()));
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: impl Into<String>) {
        self.parts.push(Part::Paragraph(text.into()));
    }

    /// Adds a table, unless it has no row.
    pub fn table(&mut self, header: Vec<String>, rows: Vec<Vec<String>>) {
        if !rows.is_empty() {
            self.parts.push(Part::Table(Table { header, rows }));
        }
    }

    /// Adds charts.
    pub fn charts(&mut self, charts: Vec<(String, Chart)>) {
        self.parts.push(Part::Charts(charts));
    }

    /// The document as Markdown, without its charts.
    pub fn markdown(&self) -> String {
        // Writing to a String does not fail.
        let mut text = format!("# {}\n", self.title);
        for part in &self.parts {
            match part {
                Part::Heading(heading) => {
                    let _ = write!(text, "\n## {heading}\n");
                }
                Part::Paragraph(paragraph) => {
                    let _ = write!(text, "\n{paragraph}\n");
                }
                Part::List(items) => {
                    text.push('\n');
                    for item in items {
                        let _ = writeln!(text, "- {item}");
                    }
                }
                Part::Table(table) => {
                    let _ = write!(text, "\n| {} |\n", table.header.join(" | "));
                    let columns = table.header.len().saturating_sub(1);
                    let _ = writeln!(text, "|---{}|", "|--:".repeat(columns));
                    for row in &table.rows {
                        let _ = writeln!(text, "| {} |", row.join(" | "));
                    }
                }
                Part::Charts(_) => {}
            }
        }
        text
    }

    /// The document as one HTML file.
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let mut text = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>{}{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
            chart::style()
        );
        for part in &self.parts {
            match part {
                Part::Heading(heading) => {
                    let _ = writeln!(text, "<h2>{}</h2>", escape(heading));
                }
                Part::Paragraph(paragraph) => {
                    let _ = writeln!(text, "<p>{}</p>", inline(paragraph));
                }
                Part::List(items) => {
                    text.push_str("<ul>\n");
                    for item in items {
                        let _ = writeln!(text, "<li>{}</li>", inline(item));
                    }
                    text.push_str("</ul>\n");
                }
                Part::Table(table) => table.html(&mut text),
                Part::Charts(charts) => {
                    text.push_str("<div class=\"charts\">\n");
                    for (caption, chart) in charts {
                        let (caption, svg) = (inline(caption), chart.svg());
                        let _ = writeln!(
                            text,
                            "<figure>\n{svg}<figcaption>{caption}</figcaption>\n</figure>"
                        );
                    }
                    text.push_str("</div>\n");
                }
            }
        }
        text.push_str("</body>\n</html>\n");
        text
    }
}

impl Table {
    fn html(&self, text: &mut String) {
        text.push_str("<div class=\"wide\"><table>\n<thead><tr>");
        for cell in &self.header {
            let _ = write!(text, "<th scope=\"col\">{}</th>", inline(cell));
        }
        text.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            text.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let cell = inline(cell);
                let _ = match column {
                    0 => write!(text, "<th scope=\"row\">{cell}</th>"),
                    _ => write!(text, "<td>{cell}</td>"),
                };
            }
            text.push_str("</tr>\n");
        }
        text.push_str("</tbody>\n</table></div>\n");
    }
}

/// Text with `code` and **strong** as HTML.
fn inline(text: &str) -> String {
    let mut html = String::new();
    for (index, piece) in escape(text).split('`').enumerate() {
        if index % 2 == 1 {
            let _ = write!(html, "<code>{piece}</code>");
            continue;
        }
        for (index, piece) in piece.split("**").enumerate() {
            let _ = match index % 2 {
                1 => write!(html, "<strong>{piece}</strong>"),
                _ => write!(html, "{piece}"),
            };
        }
    }
    html
}

/// What a page has beside its charts.
const STYLE: &str = "
body{margin:2rem auto;max-width:75rem;padding:0 1rem;color:var(--ink);background:var(--paper);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .7rem;border-bottom:1px solid var(--grid);text-align:right}
th:first-child{text-align:left}thead th{border-bottom:2px solid var(--grid);vertical-align:bottom}
tbody tr:hover{background:var(--soft)}tbody th{font-weight:500}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(22rem,1fr));gap:1.2rem}
figure{margin:0}figcaption{font-size:.9rem}svg{width:100%;height:auto}
";

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        let mut page = Page::new("A & B");
        page.heading("One");
        page.paragraph("Say `x < y` **now**.");
        page.table(
            vec!["name".to_owned(), "value".to_owned()],
            vec![vec!["a".to_owned(), "1".to_owned()]],
        );
        page.table(vec!["empty".to_owned()], Vec::new());
        page.parts.push(Part::List(vec!["item".to_owned()]));
        page.charts(vec![("c".to_owned(), Chart::new("p", 1.0, 1.0))]);
        page
    }

    #[test]
    fn markdown_has_everything_but_charts() {
        assert_eq!(
            page().markdown(),
            "# A & B\n\n## One\n\nSay `x < y` **now**.\n\n| name | value |\n|---|--:|\n\
             | a | 1 |\n\n- item\n"
        );
    }

    #[test]
    fn html_escapes_what_is_text_and_keeps_charts() {
        let html = page().html();
        for piece in [
            "<h1>A &amp; B</h1>",
            "<p>Say <code>x &lt; y</code> <strong>now</strong>.</p>",
            "<tr><th scope=\"row\">a</th><td>1</td></tr>",
            "<svg viewBox=",
            "<figcaption>c</figcaption>",
        ] {
            assert!(html.contains(piece), "{piece}\n{html}");
        }
        assert!(!html.contains("empty"));
        assert!(!html.contains("http"), "the page needs nothing else");
    }
}

"""The source map names every section of the three documents once, and links to what is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# section -> where it is taught: chapter numbers, or a page of the back matter
SECTIONS: list[dict[str, tuple[str, ...]]] = [
    {
        "可视化演示": ("01",),
        "核心矛盾：吞吐与延迟的拉锯": ("01",),
        "批处理机制：从等满锅到流水线": ("03",),
        "数学建模：P99约束下的最优批大小": ("05",),
        "动态调参：给厨房装调节阀": ("07",),
        "监控告警：厨房仪表盘": ("09",),
        "兼容迁移：换锅不换谱": ("11",),
        "工程落地：从压测到成本优化": ("12",),
        "AI 应用场景": ("application scenarios",),
        "Python 演示": ("01", "05"),
        "常见误区": ("misconceptions",),
        "面试题": ("self-test",),
    },
    {
        "引言": ("01",),
        "1. 批处理的收益来源与代价": ("02",),
        "2. 静态批与连续批处理": ("03",),
        "3. batch size 与两个延迟指标的拉扯": ("02",),
        "4. 并发数与吞吐不是线性关系": ("01", "04"),
        "5. 三个可调参数与它们的相互约束": ("04",),
        "6. 延迟目标的两种表述": ("05",),
        "7. 怎么找自己服务的拐点": ("06",),
        "8. 四个常见误解": ("10",),
        "9. 排错：五种吞吐/延迟异常": ("10",),
        "10. 边界：这些结论什么时候不适用": ("10",),
        "11. 自测": ("self-test",),
    },
    {
        "引言": ("04",),
        "1. 先区分几种并发": ("04",),
        "2. Prefill 和 Decode 的调度差异": ("02",),
        "2.1 Prefill": ("02",),
        "2.2 Decode": ("02",),
        "3. Static Batching": ("03",),
        "4. Continuous Batching": ("03",),
        "5. Batch Size 不是越大越好": ("02",),
        "6. vLLM 中的两个关键参数": ("04",),
        "6.1 max_num_seqs": ("04",),
        "6.2 max_num_batched_tokens": ("04",),
        "7. 队列和排队延迟": ("05", "08", "10"),
        "8. 吞吐、TTFT、ITL 和 p99 的取舍": ("07",),
        "9. 长短请求混跑问题": ("08",),
        "10. 限流和降级": ("08",),
        "11. 离线批处理的实践": ("08",),
        "12. 监控指标": ("09",),
        "13. 常见问题": ("10",),
        "13.1 并发一上来，TTFT 明显变差": ("10",),
        "13.2 GPU 利用率高，但用户感觉慢": ("10",),
        "13.3 模型能启动，但高并发 OOM": ("10",),
        "13.4 QPS 不高，但服务还是很慢": ("10",),
        "14. 压测建议": ("06",),
        "15. 和其他概念的关系": ("12",),
        "16. 实践检查清单": ("checklists",),
        "17. 总结": ("12",),
    },
]


def _rows(repo: Path) -> list[list[tuple[str, str]]]:
    """For each document, its rows: (original section, where it is taught)."""
    text = (repo / "chapters" / "source_map.md").read_text(encoding="utf-8")
    documents = []
    for part in text.split("\n## ")[1:]:
        cells = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
        documents.append([(row[0].strip(), row[2].strip()) for row in cells[2:]])
    return documents


@pytest.mark.parametrize("document", range(3))
def test_every_section_is_there_once_in_order(repo: Path, document: int) -> None:
    assert [section for section, _ in _rows(repo)[document]] == list(SECTIONS[document])


@pytest.mark.parametrize("document", range(3))
def test_written_chapters_are_linked_and_others_planned(repo: Path, document: int) -> None:
    for section, taught in _rows(repo)[document]:
        places = [place.strip() for place in taught.split(";")]
        planned = SECTIONS[document][section]
        assert len(places) == len(planned), section
        for place, where in zip(places, planned, strict=True):
            if not where.isdigit():
                page = repo / "chapters" / f"{where.replace(' ', '_').replace('-', '_')}.md"
                expected = rf"{{doc}}`{page.stem}`" if page.exists() else rf"planned, {where}"
                assert place == expected, f"{section}: write {expected}"
            elif chapter := next((repo / "chapters").glob(f"{where}_*.md"), None):
                link = re.fullmatch(r"\{ref\}`(?:[^<`]+<)?(ch\d\d-[a-z0-9-]+)>?`", place)
                assert link, f"{section}: chapter {where} is written, so link to one of its labels"
                assert f"({link[1]})=" in chapter.read_text(encoding="utf-8"), f"{link[1]} isn't in {chapter.name}"
            else:
                assert place == f"planned, chapter {where}", section
